#!/bin/sh
# What the tests of go-zookeeper start as a ZooKeeper server: zkServer.sh start-foreground ZOO_CFG.
#
# It becomes kvd (the program that $KVD names) with that file, so that the SIGKILL which ends a server of those
# tests ends kvd. As with ZooKeeper's own script, settings come as system properties in SERVER_JVMFLAGS:
# -Dzookeeper.KEY=VALUE and -Djute.maxbuffer=N go to kvd as --set KEY=VALUE. Anything else there is for a JVM.
set -eu
if [ $# -ne 2 ] || [ "$1" != start-foreground ]; then
	echo "usage: zkServer.sh start-foreground ZOO_CFG" >&2
	exit 2
fi
config=$2
set -f # no flag is a pattern
set --
for flag in ${SERVER_JVMFLAGS:-}; do
	case $flag in
	-Dzookeeper.*=*) set -- "$@" --set "${flag#-Dzookeeper.}" ;;
	-Djute.maxbuffer=*) set -- "$@" --set "${flag#-D}" ;;
	*) echo "zkServer.sh: $flag is not for kvd" >&2 ;;
	esac
done
exec "${KVD:?names the kvd to run}" serve --config "$config" "$@"
