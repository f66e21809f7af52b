/* The C client against three members, through proxies that cut. Prints one line of JSON for every check, which runs in
 * a process of its own. */
#include "stage.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define OPEN &ZOO_OPEN_ACL_UNSAFE

/* Waits for a sync, so that reads on this connection see everything acknowledged before. */
static struct gate synced;

static void sync_done(int rc, const char *path, const void *data) {
	(void)path, (void)data;
	same(rc, ZOK);
	gate_pass(&synced);
}

static void catch_up(struct client *c) {
	gate_init(&synced);
	same(zoo_async(c->zh, "/", sync_done, NULL), ZOK);
	gate_wait(&synced, 1);
}

static void make(struct client *c, const char *path, const char *value, int mode) {
	int rc = zoo_create(c->zh, path, value, value ? (int)strlen(value) : -1, OPEN, mode, NULL, 0);
	if (rc != ZOK)
		fail("create %s: %d", path, rc);
}

/* ---- thousands of requests in flight, answered in order ---- */

enum { PIPELINED = 3000 };
static struct gate order;

static void in_order(int rc, int want, const void *data) {
	if (rc != want)
		fail("request %d: code %d, want %d", (int)(intptr_t)data, rc, want);
	pthread_mutex_lock(&order.mu);
	int n = order.n;
	pthread_mutex_unlock(&order.mu);
	if (n != (int)(intptr_t)data)
		fail("answer %d came as number %d", (int)(intptr_t)data, n);
	gate_pass(&order);
}

static void created(int rc, const char *value, const void *data) {
	(void)value;
	in_order(rc, ZOK, data);
}

static void written(int rc, const struct Stat *stat, const void *data) {
	if (rc == ZOK && stat->version != 1)
		fail("version %d", stat->version);
	in_order(rc, ZOK, data);
}

static void seen(int rc, const char *value, int len, const struct Stat *stat, const void *data) {
	char want[16];
	int n = snprintf(want, sizeof want, "%d", (int)(intptr_t)data / 4);
	if (rc == ZOK && (len != n || memcmp(value, want, n) != 0 || stat->dataLength != n))
		fail("a read behind a write does not see it: %.*s", len, value);
	in_order(rc, ZOK, data);
}

static void removed(int rc, const void *data) { in_order(rc, ZOK, data); }

static void pipelining(void) {
	struct client c;
	char path[64], value[16];
	connect_to(&c, 0, 30000, NULL);
	make(&c, "/pipe", NULL, ZOO_PERSISTENT);
	gate_init(&order);
	for (intptr_t i = 0; i < PIPELINED; i++) {
		snprintf(path, sizeof path, "/pipe/%d", (int)i);
		int n = snprintf(value, sizeof value, "%d", (int)i);
		same(zoo_acreate(c.zh, path, "", 0, OPEN, ZOO_PERSISTENT, created, (void *)(4 * i)), ZOK);
		same(zoo_aset(c.zh, path, value, n, 0, written, (void *)(4 * i + 1)), ZOK);
		same(zoo_aget(c.zh, path, 0, seen, (void *)(4 * i + 2)), ZOK);
		same(zoo_adelete(c.zh, path, 1, removed, (void *)(4 * i + 3)), ZOK);
	}
	gate_wait(&order, 4 * PIPELINED);
	close_client(&c);
}

/* ---- multi ---- */

static void multi(void) {
	struct client c;
	char created_path[64];
	struct Stat stat, set;
	zoo_op_t ops[4];
	zoo_op_result_t results[4];
	connect_to(&c, 0, 30000, NULL);
	make(&c, "/multi", "0", ZOO_PERSISTENT);

	zoo_create_op_init(&ops[0], "/multi/s-", "", 0, OPEN, ZOO_PERSISTENT_SEQUENTIAL, created_path, sizeof created_path);
	zoo_set_op_init(&ops[1], "/multi", "1", 1, 0, &set);
	zoo_check_op_init(&ops[2], "/multi", 1);
	zoo_delete_op_init(&ops[3], "/multi/s-0000000000", 0);
	same(zoo_multi(c.zh, 4, ops, results), ZOK);
	for (int i = 0; i < 4; i++)
		same(results[i].err, ZOK);
	if (strcmp(created_path, "/multi/s-0000000000") != 0)
		fail("created %s", created_path);
	same(set.version, 1);

	zoo_create_op_init(&ops[0], "/multi/x", "", 0, OPEN, ZOO_PERSISTENT, NULL, 0);
	zoo_check_op_init(&ops[1], "/multi", 7);
	zoo_delete_op_init(&ops[2], "/multi", -1);
	same(zoo_multi(c.zh, 3, ops, results), ZBADVERSION);
	same(results[0].err, ZOK);
	same(results[1].err, ZBADVERSION);
	same(results[2].err, ZRUNTIMEINCONSISTENCY);
	same(zoo_exists(c.zh, "/multi/x", 0, &stat), ZNONODE);
	close_client(&c);
}

/* ---- kinds of nodes, versions, large values ---- */

static void nodes(void) {
	struct client c, other;
	struct Stat stat;
	char path[64];
	connect_to(&c, 1, 30000, NULL);
	connect_to(&other, 2, 30000, NULL);
	make(&c, "/nodes", NULL, ZOO_PERSISTENT);
	char one[8];
	int len = sizeof one;
	same(zoo_get(c.zh, "/nodes", 0, one, &len, &stat), ZOK);
	same(len, -1); /* null is not empty */

	same(zoo_create(c.zh, "/nodes/q", "", 0, OPEN, ZOO_EPHEMERAL_SEQUENTIAL, path, sizeof path), ZOK);
	if (strcmp(path, "/nodes/q0000000000") != 0)
		fail("created %s", path);
	same(zoo_exists(c.zh, path, 0, &stat), ZOK);
	same(stat.ephemeralOwner, zoo_client_id(c.zh)->client_id);
	same(zoo_create(c.zh, "/nodes/q0000000000/x", "", 0, OPEN, ZOO_PERSISTENT, NULL, 0), ZNOCHILDRENFOREPHEMERALS);
	same(zoo_create2(c.zh, "/nodes/container", "", 0, OPEN, ZOO_CONTAINER, path, sizeof path, &stat), ZOK);
	same(stat.ephemeralOwner, 0);
	same(zoo_create2_ttl(c.zh, "/nodes/ttl", "", 0, OPEN, ZOO_PERSISTENT_WITH_TTL, 1000000, path, sizeof path, &stat), ZOK);
	same(stat.ephemeralOwner, 0);
	same(zoo_create(c.zh, "/nodes", "", 0, OPEN, ZOO_PERSISTENT, NULL, 0), ZNODEEXISTS);
	same(zoo_create(c.zh, "/none/x", "", 0, OPEN, ZOO_PERSISTENT, NULL, 0), ZNONODE);
	same(zoo_delete(c.zh, "/nodes", -1), ZNOTEMPTY);
	same(zoo_set(c.zh, "/nodes", "", 0, 9), ZBADVERSION);

	enum { BIG = 1000000 };
	static char big[BIG], back[BIG];
	for (int i = 0; i < BIG; i++)
		big[i] = (char)(i * 31);
	same(zoo_set2(c.zh, "/nodes", big, BIG, 0, &stat), ZOK);
	catch_up(&other);
	len = BIG;
	same(zoo_get(other.zh, "/nodes", 0, back, &len, &stat), ZOK);
	same(len, BIG);
	same(memcmp(big, back, BIG), 0);

	struct String_vector names;
	same(zoo_get_children2(other.zh, "/nodes", 0, &names, &stat), ZOK);
	same(names.count, 3);
	same(stat.numChildren, 3);
	deallocate_String_vector(&names);
	close_client(&c);
	catch_up(&other);
	same(zoo_exists(other.zh, "/nodes/q0000000000", 0, &stat), ZNONODE);
	close_client(&other);
}

/* ---- lists and credentials ---- */

static struct gate authenticated;

static void authed(int rc, const void *data) {
	(void)data;
	same(rc, ZOK);
	gate_pass(&authenticated);
}

static void acls(void) {
	struct client owner, other;
	struct Stat stat;
	char value[8];
	int len = sizeof value;
	struct ACL all = {ZOO_PERM_ALL, {"auth", ""}};
	struct ACL_vector list = {1, &all}, got;
	connect_to(&owner, 1, 30000, NULL);
	connect_to(&other, 2, 30000, NULL);
	gate_init(&authenticated);
	same(zoo_create(owner.zh, "/guarded", "x", 1, &list, ZOO_PERSISTENT, NULL, 0), ZINVALIDACL);
	same(zoo_add_auth(owner.zh, "digest", "u:p", 3, authed, NULL), ZOK);
	gate_wait(&authenticated, 1);
	same(zoo_create(owner.zh, "/guarded", "x", 1, &list, ZOO_PERSISTENT, NULL, 0), ZOK);
	same(zoo_get_acl(owner.zh, "/guarded", &got, &stat), ZOK);
	same(got.count, 1);
	if (strcmp(got.data[0].id.scheme, "digest") != 0 || strcmp(got.data[0].id.id, "u:Jq7wMyA/w2Vd5WIDAKdu4OIIFEQ=") != 0)
		fail("list %s %s", got.data[0].id.scheme, got.data[0].id.id);
	deallocate_ACL_vector(&got);
	catch_up(&other);
	same(zoo_get(other.zh, "/guarded", 0, value, &len, &stat), ZNOAUTH);
	same(zoo_set(other.zh, "/guarded", "y", 1, -1), ZNOAUTH);
	same(zoo_set_acl(other.zh, "/guarded", -1, OPEN), ZNOAUTH);
	same(zoo_create(other.zh, "/guarded/x", "", 0, OPEN, ZOO_PERSISTENT, NULL, 0), ZNOAUTH);
	same(zoo_add_auth(other.zh, "digest", "u:p", 3, authed, NULL), ZOK);
	gate_wait(&authenticated, 2);
	same(zoo_set(other.zh, "/guarded", "y", 1, 0), ZOK);

	/* Credentials belong to the connection: the client sends them again after a cut. */
	stage("cut all");
	wait_connects(&owner, 2);
	len = sizeof value;
	same(zoo_get(owner.zh, "/guarded", 0, value, &len, &stat), ZOK);
	same(zoo_set_acl(owner.zh, "/guarded", 0, OPEN), ZOK);
	close_client(&owner);
	close_client(&other);
}

/* ---- watches, also over cuts ---- */

static void watches(void) {
	struct client c, other;
	struct Stat stat;
	struct String_vector names;
	char value[8];
	int len = sizeof value;
	connect_to(&c, 0, 30000, NULL);
	connect_to(&other, 0, 30000, NULL);
	make(&c, "/w", "", ZOO_PERSISTENT);
	catch_up(&other);

	same(zoo_get(c.zh, "/w", 1, value, &len, &stat), ZOK);
	same(zoo_get_children(c.zh, "/w", 1, &names), ZOK);
	deallocate_String_vector(&names);
	same(zoo_exists(c.zh, "/w/x", 1, &stat), ZNONODE);
	make(&other, "/w/x", "", ZOO_PERSISTENT);
	wait_event(&c, 1, ZOO_CREATED_EVENT, "/w/x");
	wait_event(&c, 2, ZOO_CHILD_EVENT, "/w");
	same(zoo_set(other.zh, "/w", "1", 1, -1), ZOK);
	wait_event(&c, 3, ZOO_CHANGED_EVENT, "/w");

	/* What changed while the connection was away is told afterwards; what did not is still watched. */
	len = sizeof value;
	same(zoo_get(c.zh, "/w", 1, value, &len, &stat), ZOK);
	same(zoo_exists(c.zh, "/w/x", 1, &stat), ZOK);
	same(zoo_exists(c.zh, "/w/y", 1, &stat), ZNONODE);
	for (int n = 1; n <= 3; n++)
		stage("refuse %d", n);
	stage("cut all");
	struct client direct;
	setenv("KVD_SERVERS", stage("direct 1"), 1);
	connect_to(&direct, 0, 30000, NULL);
	same(zoo_set(direct.zh, "/w", "2", 1, -1), ZOK);
	for (int n = 1; n <= 3; n++)
		stage("accept %d", n);
	wait_connects(&c, 2);
	wait_event(&c, 4, ZOO_CHANGED_EVENT, "/w");
	same(zoo_delete(direct.zh, "/w/x", -1), ZOK);
	wait_event(&c, 5, ZOO_DELETED_EVENT, "/w/x");
	make(&direct, "/w/y", "", ZOO_PERSISTENT);
	wait_event(&c, 6, ZOO_CREATED_EVENT, "/w/y");
	close_client(&direct);
	close_client(&c);
	close_client(&other);
}

static void no_watch(zhandle_t *zh, int type, int state, const char *path, void *context) {
	(void)zh, (void)state, (void)context;
	if (type != ZOO_SESSION_EVENT && type != ZOO_NOTWATCHING_EVENT && type < 5)
		fail("event %d on %s for a removed watch", type, path);
}

static void removal(void) {
	struct client c;
	struct Stat stat;
	char value[8];
	int len = sizeof value;
	connect_to(&c, 0, 30000, NULL);
	make(&c, "/r", "", ZOO_PERSISTENT);
	same(zoo_wget(c.zh, "/r", no_watch, NULL, value, &len, &stat), ZOK);
	same(zoo_remove_watches(c.zh, "/r", ZWATCHTYPE_DATA, no_watch, NULL, 0), ZOK);
	same(zoo_set(c.zh, "/r", "1", 1, -1), ZOK);
	same(zoo_remove_all_watches(c.zh, "/r", ZWATCHTYPE_ANY, 0), ZNOWATCHER);
	close_client(&c);
}

/* ---- the configuration ---- */

static void config(void) {
	struct client c;
	char text[4096];
	int len = sizeof text - 1;
	struct Stat stat;
	connect_to(&c, 0, 30000, NULL);
	same(zoo_getconfig(c.zh, 0, text, &len, &stat), ZOK);
	text[len] = 0;
	if (strstr(text, "server.3=") == NULL || strstr(text, "\nversion=") == NULL)
		fail("configuration %s", text);
	len = sizeof text;
	same(zoo_reconfig(c.zh, NULL, "3", NULL, -1, text, &len, &stat), ZRECONFIGDISABLED);
	close_client(&c);
}

/* ---- sessions ---- */

static void resume(void) {
	struct client c, again, other;
	struct Stat stat;
	connect_to(&c, 1, 30000, NULL);
	make(&c, "/mine", "", ZOO_EPHEMERAL);
	clientid_t id = *zoo_client_id(c.zh);
	connect_to(&again, 2, 30000, &id);
	same(zoo_client_id(again.zh)->client_id, id.client_id);
	same(zoo_exists(again.zh, "/mine", 0, &stat), ZOK);
	same(stat.ephemeralOwner, id.client_id);

	/* A wrong password is "expired", and does no harm. */
	clientid_t wrong = id;
	memset(wrong.passwd, 'x', sizeof wrong.passwd);
	struct client thief;
	start_connecting(&thief, 3, 30000, &wrong);
	wait_expired(&thief);
	same(zoo_exists(again.zh, "/mine", 0, &stat), ZOK);
	close_client(&again); /* closes the session */
	connect_to(&other, 3, 30000, NULL);
	catch_up(&other);
	same(zoo_exists(other.zh, "/mine", 0, &stat), ZNONODE);
	struct client late;
	start_connecting(&late, 3, 30000, &id);
	wait_expired(&late);
	close_client(&other);
}

static void expiry(void) {
	struct client c, other;
	struct Stat stat;
	connect_to(&other, 1, 30000, NULL);
	connect_to(&c, 3, 4000, NULL);
	make(&c, "/soon", "", ZOO_EPHEMERAL);
	catch_up(&other);
	same(zoo_exists(other.zh, "/soon", 1, &stat), ZOK);
	stage("refuse 3");
	stage("cut 3");
	wait_event(&other, 1, ZOO_DELETED_EVENT, "/soon");
	same(c.expired, false); /* only a server's word ends a session */
	stage("accept 3");
	wait_expired(&c);
	same(zoo_exists(c.zh, "/", 0, &stat), ZINVALIDSTATE);
	close_client(&other);
}

/* ---- the leader dies under pipelined writes ---- */

static struct gate answers;
static int newest, lost;

static void answered(int rc, const struct Stat *stat, const void *data) {
	(void)data;
	pthread_mutex_lock(&answers.mu);
	if (rc == ZOK) {
		if (stat->version <= newest)
			fail("version %d after %d", stat->version, newest);
		newest = stat->version;
	} else if (rc == ZCONNECTIONLOSS || rc == ZOPERATIONTIMEOUT) {
		lost++;
	} else {
		fail("a write: %d", rc);
	}
	pthread_mutex_unlock(&answers.mu);
	gate_pass(&answers);
}

static void leader_death(void) {
	struct client c;
	struct Stat stat;
	enum { BATCH = 200, BEFORE = 10, BATCHES = 30 };
	connect_to(&c, 0, 30000, NULL);
	int64_t session = zoo_client_id(c.zh)->client_id;
	make(&c, "/dies", "", ZOO_PERSISTENT);
	gate_init(&answers);
	int died = 0, asked = 0;
	for (int batch = 0; batch < BATCHES; batch++) {
		for (int i = 0; i < BATCH; i++, asked++)
			same(zoo_aset(c.zh, "/dies", "x", 1, -1, answered, NULL), ZOK);
		if (batch == BEFORE) {
			died = leader();
			stage("kill %d", died);
		}
		gate_wait(&answers, asked);
	}
	if (newest < BATCH * BEFORE)
		fail("only %d versions", newest);
	same(zoo_client_id(c.zh)->client_id, session);
	int rc;
	while ((rc = zoo_exists(c.zh, "/dies", 0, &stat)) == ZCONNECTIONLOSS)
		;
	same(rc, ZOK);
	if (stat.version < newest || stat.version > newest + lost)
		fail("version %d, acknowledged %d, unknown %d", stat.version, newest, lost);
	stage("start %d", died);
	struct client fresh;
	connect_to(&fresh, died, 30000, NULL);
	catch_up(&fresh);
	same(zoo_exists(fresh.zh, "/dies", 0, &stat), ZOK);
	if (stat.version < newest)
		fail("version %d on the restarted member, acknowledged %d", stat.version, newest);
	close_client(&fresh);
	close_client(&c);
}

static void heal(void) { stage("heal"); }

static const struct {
	const char *name, *ops;
	void (*run)(void);
} checks[] = {
	{"thousands in flight, answered in order", "\"create\",\"setData\",\"getData\",\"delete\"", pipelining},
	{"multi: results and failures", "\"multi\",\"check\",\"create\",\"setData\",\"delete\"", multi},
	{"kinds of nodes, null, and a megabyte", "\"create\",\"create2\",\"createContainer\",\"createTTL\",\"getData\",\"setData\",\"getChildren2\",\"delete\",\"exists\",\"sync\"", nodes},
	{"lists and credentials, also after a cut", "\"auth\",\"getACL\",\"setACL\",\"reconnect\"", acls},
	{"watches, also those that a cut interrupts", "\"watch events\",\"setWatches\",\"exists\",\"getChildren\",\"reconnect\"", watches},
	{"watches are removed", "\"removeWatches\"", removal},
	{"the configuration", "\"getConfig\",\"reconfig\"", config},
	{"a session resumed by another handle, on another member", "\"createSession\",\"resume\",\"closeSession\"", resume},
	{"an expired session says so", "\"expiry\",\"reconnect\",\"ping\"", expiry},
	{"the leader dies under pipelined writes", "\"leader death\",\"setData\",\"resume\"", leader_death},
};

/* Runs a check in a child and returns the first line of its complaint, or what else ended it. */
static bool run(void (*check)(void), char *detail, size_t size) {
	int ends[2], status;
	detail[0] = 0;
	if (pipe(ends) != 0)
		return false;
	pid_t child = fork();
	if (child == 0) {
		dup2(ends[1], 2);
		check();
		_exit(0);
	}
	close(ends[1]);
	FILE *in = fdopen(ends[0], "r");
	char line[512];
	while (fgets(line, sizeof line, in) != NULL) {
		fputs(line, stderr);
		snprintf(detail, size, "%s", line); /* the last one */
	}
	fclose(in);
	if (waitpid(child, &status, 0) != child)
		return false;
	if (WIFSIGNALED(status))
		snprintf(detail, size, "signal %d", WTERMSIG(status));
	return status == 0;
}

int main(void) {
	bool failed = false;
	zoo_set_debug_level(ZOO_LOG_LEVEL_ERROR);
	FILE *quiet = fopen("/dev/null", "w");
	zoo_set_log_stream(quiet); /* every cut is an error to it */
	for (size_t i = 0; i < sizeof checks / sizeof checks[0]; i++) {
		char detail[512];
		bool pass = run(checks[i].run, detail, sizeof detail);
		for (char *at = detail; *at; at++)
			if (*at == '"' || *at == '\\' || (unsigned char)*at < ' ')
				*at = ' ';
		printf("{\"client\":\"c\",\"check\":\"%s\",\"ops\":[%s],\"pass\":%s,\"detail\":\"%s\"}\n", checks[i].name,
		       checks[i].ops, pass ? "true" : "false", pass ? "" : detail);
		fflush(stdout);
		failed |= !pass;
		if (!run(heal, detail, sizeof detail)) {
			fprintf(stderr, "heal: %s", detail);
			return 1;
		}
	}
	return failed;
}
