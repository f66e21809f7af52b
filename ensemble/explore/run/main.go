// Command run explores every behaviour of the broadcast or of the election within small bounds, and prints how far it is.
// At a broken property it prints the shortest way to it, as a script that -replay takes, and exits non-zero.
//
//	go run ./ensemble/explore/run zab --states 10000000 --workers 2
//	go run ./ensemble/explore/run zab --writes 1 --leads 1 --follows 2 --mutant AckBeforeSync
//	go run ./ensemble/explore/run fle
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"reflect"
	"runtime"
	"runtime/debug"
	"runtime/pprof"
	"strings"
	"time"

	"kvd/ensemble/explore"
)

func main() {
	code, err := run(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "explore:", err)
	}
	os.Exit(code)
}

func run(args []string) (code int, err error) {
	if len(args) == 0 || models[args[0]] == nil {
		return 2, errors.New("usage: run zab|fle [flags]; -h lists them")
	}
	fs := flag.NewFlagSet(args[0], flag.ContinueOnError)
	var opts explore.Options
	fs.IntVar(&opts.States, "states", 10_000_000, "stop at so many distinct states; 0: when the frontier is exhausted")
	fs.IntVar(&opts.Workers, "workers", runtime.GOMAXPROCS(0), "states expanded at a time")
	fs.DurationVar(&opts.Every, "every", 5*time.Second, "distance of the lines of progress")
	mutant := fs.String("mutant", "", "a deliberate mistake: a field of zab.Mutations or fle.Mutations")
	replay := fs.String("replay", "", "a file with a script: carry it out instead of exploring")
	profile := fs.String("profile", "", "a file for a CPU profile")
	model, mutations := models[args[0]](fs)
	if err := fs.Parse(args[1:]); err != nil {
		return 2, err
	}
	if fs.NArg() > 0 {
		return 2, fmt.Errorf("unexpected argument %q", fs.Arg(0))
	}
	if *mutant != "" {
		f := reflect.ValueOf(mutations).Elem().FieldByName(*mutant)
		if !f.IsValid() {
			return 2, fmt.Errorf("no mutant %q; there are: %s", *mutant, fields(mutations))
		}
		f.SetBool(true)
	}
	m := model()
	fmt.Println(m)
	if *replay != "" {
		return replayed(m, *replay)
	}
	if *profile != "" {
		stop, err := profiled(*profile)
		if err != nil {
			return 1, err
		}
		defer stop()
	}
	debug.SetGCPercent(400) // most of the heap is garbage of a moment; what stays is a few tables
	opts.Progress = func(p explore.Progress) { fmt.Printf("%s, %s\n", p, memory()) }
	r, err := explore.Run(m, opts)
	if err != nil {
		return 1, err
	}
	fmt.Printf("%s, %s\n", r.Progress, memory())
	switch {
	case r.Violation != nil:
		fmt.Printf("VIOLATION after %d actions: %v\n%s\n", len(r.Violation.Script), r.Violation.Err, strings.Join(r.Violation.Script, "\n"))
		return 1, nil
	case r.Exhausted:
		fmt.Printf("exhausted: %d states, no violation\n", r.States)
	default:
		fmt.Printf("stopped: %d states, %d of them not expanded, no violation\n", r.States, r.Frontier())
	}
	return 0, nil
}

// models make the flags of a system's bounds, and return what builds it and where its mutations are.
var models = map[string]func(*flag.FlagSet) (func() explore.Model, any){
	"zab": func(fs *flag.FlagSet) (func() explore.Model, any) {
		z := &explore.Zab{}
		fs.IntVar(&z.Members, "members", 3, "voters, up to 5")
		fs.IntVar(&z.Writes, "writes", 2, "client writes")
		fs.IntVar(&z.Leads, "leads", 2, "times a member is told to lead")
		fs.IntVar(&z.Follows, "follows", 4, "times a member is told to follow another")
		fs.IntVar(&z.Looks, "looks", 3, "times a member gives up its role by itself")
		fs.IntVar(&z.Crashes, "crashes", 1, "crashes; starting again is free")
		fs.IntVar(&z.Breaks, "breaks", 0, "connections broken by the network")
		fs.IntVar(&z.Pings, "pings", 0, "PING rounds")
		fs.IntVar(&z.Queue, "queue", 3, "messages in one direction of a connection")
		fs.BoolVar(&z.Blank, "blank", false, "start with empty disks and everybody looking")
		fs.BoolVar(&z.Outcomes, "outcomes", false, "check what came of a mistake only, not the mistake itself")
		return func() explore.Model { return *z }, &z.Mutations
	},
	"fle": func(fs *flag.FlagSet) (func() explore.Model, any) {
		f := &explore.Fle{}
		fs.IntVar(&f.Rounds, "rounds", 2, "highest round")
		return func() explore.Model { return *f }, &f.Mutations
	},
}

func fields(v any) string {
	var names []string
	t := reflect.TypeOf(v).Elem()
	for i := range t.NumField() {
		names = append(names, t.Field(i).Name)
	}
	return strings.Join(names, ", ")
}

func replayed(m explore.Model, file string) (int, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return 1, err
	}
	s, ended, err := explore.Replay(m, strings.Split(string(b), "\n"))
	switch {
	case ended:
		fmt.Println("VIOLATION:", err)
		return 1, nil
	case err != nil:
		return 1, err
	}
	fmt.Printf("no violation, fingerprint %016x\n", s.Fingerprint())
	return 0, nil
}

func profiled(file string) (stop func(), err error) {
	f, err := os.Create(file)
	if err != nil {
		return nil, err
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() {
		pprof.StopCPUProfile()
		if err := f.Close(); err != nil {
			fmt.Fprintln(os.Stderr, "explore:", err)
		}
	}, nil
}

// memory is what the process has from the system.
func memory() string {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return fmt.Sprintf("%d MiB of memory", m.Sys>>20)
}
