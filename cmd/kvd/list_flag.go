package main

import (
	"flag"
	"strings"

	"github.com/urfave/cli/v2"
)

// listFlag is a flag that may be given several times. The library's own slice flag splits values at commas and adds
// what the environment says to what the line says; a value must stay whole, and the line must win.
type listFlag struct {
	name, usage string
	values      listValues
}

// memberFlag is --member.
func memberFlag() *listFlag {
	return &listFlag{name: "member", usage: "`N=HOST:PORT:PORT`, one for each member, as server.N in zoo.cfg (e.g. '1=h1:2888:3888;2181')"}
}

// setFlag is --set.
func setFlag() *listFlag {
	return &listFlag{name: "set", usage: "`KEY=VALUE`, any key that a zoo.cfg may have; stronger than the file, and repeatable"}
}

// listValues collects the values.
type listValues struct{ all []string }

func (v *listValues) Set(s string) error { v.all = append(v.all, s); return nil }
func (v *listValues) String() string     { return strings.Join(v.all, ",") }

func (f *listFlag) Apply(set *flag.FlagSet) error {
	set.Var(&f.values, f.name, f.usage)
	return nil
}

func (f *listFlag) Names() []string        { return []string{f.name} }
func (f *listFlag) IsSet() bool            { return len(f.values.all) > 0 }
func (f *listFlag) String() string         { return cli.FlagStringer(f) }
func (f *listFlag) TakesValue() bool       { return true }
func (f *listFlag) GetUsage() string       { return f.usage }
func (f *listFlag) GetValue() string       { return "" }
func (f *listFlag) GetDefaultText() string { return "" }
func (f *listFlag) GetEnvVars() []string   { return nil }
