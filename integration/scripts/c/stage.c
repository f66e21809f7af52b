#include "stage.h"

#include <errno.h>
#include <netdb.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

void fail(const char *format, ...) {
	va_list args;
	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fputc('\n', stderr);
	_exit(1);
}

void same_at(int line, const char *what, long long got, long long want) {
	if (got != want)
		fail("line %d: %s is %lld, want %lld", line, what, got, want);
}

static struct timespec deadline(void) {
	struct timespec t;
	clock_gettime(CLOCK_REALTIME, &t);
	t.tv_sec += LIMIT_SECONDS;
	return t;
}

/* Waits on a condition variable until the expression holds. The mutex is held. */
#define until(c, expression, ...)                                                                  \
	do {                                                                                             \
		struct timespec end = deadline();                                                              \
		while (!(expression))                                                                          \
			if (pthread_cond_timedwait(&(c)->changed, &(c)->mu, &end) == ETIMEDOUT)                      \
				fail("waited in vain: " __VA_ARGS__);                                                      \
	} while (0)

const char *stage(const char *format, ...) {
	static FILE *in, *out;
	static char answer[1 << 16];
	va_list args;

	if (in == NULL) {
		char host[256];
		struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *to;
		int fd;
		snprintf(host, sizeof host, "%s", getenv("KVD_CONTROL"));
		char *colon = strrchr(host, ':');
		*colon = 0;
		if (getaddrinfo(host, colon + 1, &hints, &to) != 0)
			fail("control address %s", host);
		if ((fd = socket(to->ai_family, SOCK_STREAM, 0)) < 0 || connect(fd, to->ai_addr, to->ai_addrlen) != 0)
			fail("control: %s", strerror(errno));
		freeaddrinfo(to);
		in = fdopen(fd, "r");
		out = fdopen(dup(fd), "w");
	}
	va_start(args, format);
	vfprintf(out, format, args);
	va_end(args);
	fputc('\n', out);
	fflush(out);
	if (fgets(answer, sizeof answer, in) == NULL || strncmp(answer, "ok", 2) != 0)
		fail("stage: %s: %s", format, answer);
	answer[strcspn(answer, "\n")] = 0;
	return answer[2] == ' ' ? answer + 3 : answer + 2;
}

int leader(void) { return atoi(stage("leader")); }

const char *servers(int n) {
	static char all[1024];
	snprintf(all, sizeof all, "%s", getenv("KVD_SERVERS"));
	if (n == 0)
		return all;
	char *at = strtok(all, ",");
	while (--n > 0)
		at = strtok(NULL, ",");
	return at;
}

static void watch(zhandle_t *zh, int type, int state, const char *path, void *context) {
	struct client *c = context;
	(void)zh;
	pthread_mutex_lock(&c->mu);
	if (type == ZOO_SESSION_EVENT) {
		c->state = state;
		if (state == ZOO_CONNECTED_STATE)
			c->connects++;
		if (state == ZOO_EXPIRED_SESSION_STATE)
			c->expired = true;
	} else if (c->events < MAX_EVENTS) {
		c->event[c->events].type = type;
		snprintf(c->event[c->events].path, sizeof c->event[0].path, "%s", path);
		c->events++;
	}
	pthread_cond_broadcast(&c->changed);
	pthread_mutex_unlock(&c->mu);
}

void start_connecting(struct client *c, int n, int timeout_ms, const clientid_t *id) {
	memset(c, 0, sizeof *c);
	pthread_mutex_init(&c->mu, NULL);
	pthread_cond_init(&c->changed, NULL);
	pthread_mutex_lock(&c->mu); /* no event before zh is set */
	c->zh = zookeeper_init(servers(n), watch, timeout_ms, id, c, 0);
	pthread_mutex_unlock(&c->mu);
	if (c->zh == NULL)
		fail("zookeeper_init: %s", strerror(errno));
}

void connect_to(struct client *c, int n, int timeout_ms, const clientid_t *id) {
	start_connecting(c, n, timeout_ms, id);
	wait_connects(c, 1);
}

void wait_connects(struct client *c, int connects) {
	pthread_mutex_lock(&c->mu);
	until(c, c->connects >= connects, "connected %d times, not %d", c->connects, connects);
	pthread_mutex_unlock(&c->mu);
}

void wait_expired(struct client *c) {
	pthread_mutex_lock(&c->mu);
	until(c, c->expired, "an expired session (state %d)", c->state);
	pthread_mutex_unlock(&c->mu);
}

void wait_event(struct client *c, int n, int type, const char *path) {
	pthread_mutex_lock(&c->mu);
	until(c, c->events >= n, "event %d, %d on %s", n, type, path);
	if (c->event[n - 1].type != type || strcmp(c->event[n - 1].path, path) != 0)
		fail("event %d is %d on %s, want %d on %s", n, c->event[n - 1].type, c->event[n - 1].path, type, path);
	pthread_mutex_unlock(&c->mu);
}

void close_client(struct client *c) { same(zookeeper_close(c->zh), ZOK); }

void gate_init(struct gate *g) {
	pthread_mutex_init(&g->mu, NULL);
	pthread_cond_init(&g->changed, NULL);
	g->n = 0;
}

void gate_pass(struct gate *g) {
	pthread_mutex_lock(&g->mu);
	g->n++;
	pthread_cond_broadcast(&g->changed);
	pthread_mutex_unlock(&g->mu);
}

void gate_wait(struct gate *g, int n) {
	pthread_mutex_lock(&g->mu);
	until(g, g->n >= n, "%d of %d completions", g->n, n);
	pthread_mutex_unlock(&g->mu);
}
