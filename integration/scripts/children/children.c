/* children SERVER PATH: one zoo_get_children with the C client. Prints "names N" or "code C", then the number of
 * connections made. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <zookeeper/zookeeper.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int connects;

static void watcher(zhandle_t *zh, int type, int state, const char *path, void *context) {
	(void)zh, (void)path, (void)context;
	if (type != ZOO_SESSION_EVENT || state != ZOO_CONNECTED_STATE)
		return;
	pthread_mutex_lock(&lock);
	connects++;
	pthread_cond_signal(&changed);
	pthread_mutex_unlock(&lock);
}

int main(int argc, char **argv) {
	struct String_vector names;
	struct Stat stat;
	zhandle_t *zh;
	int rc;

	if (argc != 3)
		return 2;
	zoo_set_debug_level(ZOO_LOG_LEVEL_ERROR);
	if ((zh = zookeeper_init(argv[1], watcher, 30000, NULL, NULL, 0)) == NULL)
		return 1;
	pthread_mutex_lock(&lock);
	while (connects == 0)
		pthread_cond_wait(&changed, &lock);
	pthread_mutex_unlock(&lock);

	rc = zoo_get_children(zh, argv[2], 0, &names);
	if (rc == ZOK) {
		printf("names %d\n", names.count);
		deallocate_String_vector(&names);
	} else {
		printf("code %d\n", rc);
	}
	if (zoo_exists(zh, "/", 0, &stat) != ZOK)
		return 1;
	pthread_mutex_lock(&lock);
	printf("connects %d\n", connects);
	pthread_mutex_unlock(&lock);
	return zookeeper_close(zh) == ZOK ? 0 : 1;
}
