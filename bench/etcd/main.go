// Command etcd is what bench needs of etcd: its server (etcd serve ...) and a driver of the same loads as for kvd and ZooKeeper with etcd's own Go client (etcd drive
// ...). It is a module of its own, built on demand, so that who uses kvd does not inherit etcd's dependencies.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"go.etcd.io/etcd/server/v3/etcdmain"

	"kvd/bench/load"
)

func main() {
	switch {
	case len(os.Args) > 1 && os.Args[1] == "serve":
		etcdmain.Main(append([]string{"etcd"}, os.Args[2:]...))
	case len(os.Args) > 1 && os.Args[1] == "drive":
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		if err := load.Drive(ctx, &store{}, os.Args[2:], os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, "etcd drive:", err)
			os.Exit(1)
		}
	default:
		fmt.Fprintln(os.Stderr, "usage: etcd serve FLAGS of etcd | etcd drive FLAGS of the driver")
		os.Exit(2)
	}
}
