/* What the checks of the C client share: the stage that they run on (see stage_test.go), connections, waiting, and the
 * report. Everything fails by ending the program: a check runs in a process of its own. */
#ifndef STAGE_H
#define STAGE_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <zookeeper/zookeeper.h>

enum { LIMIT_SECONDS = 60, MAX_EVENTS = 256 };

/* A handle and what its watcher has been told. */
struct client {
	zhandle_t *zh;
	pthread_mutex_t mu;
	pthread_cond_t changed;
	int state;    /* the newest session state, 0 before the first */
	int connects; /* how often it became connected */
	bool expired;
	int events; /* of nodes */
	struct {
		int type;
		char path[128];
	} event[MAX_EVENTS];
};

/* Ends the check with a reason, as printf. */
void fail(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));
#define same(got, want) same_at(__LINE__, #got, (long long)(got), (long long)(want))
void same_at(int line, const char *what, long long got, long long want);

/* One command to the stage; returns what follows "ok". */
const char *stage(const char *format, ...) __attribute__((format(printf, 1, 2)));
int leader(void);

/* The proxied address of member n, or of all members if n is 0. */
const char *servers(int n);

/* Connects and waits for the session. id may be NULL. */
void connect_to(struct client *c, int n, int timeout_ms, const clientid_t *id);
void start_connecting(struct client *c, int n, int timeout_ms, const clientid_t *id);
void wait_connects(struct client *c, int connects);
void wait_expired(struct client *c);
/* Waits until there are n node events, and checks the last. */
void wait_event(struct client *c, int n, int type, const char *path);
void close_client(struct client *c);

/* Counts completions. */
struct gate {
	pthread_mutex_t mu;
	pthread_cond_t changed;
	int n;
};
void gate_init(struct gate *g);
void gate_pass(struct gate *g);
void gate_wait(struct gate *g, int n);

#endif
