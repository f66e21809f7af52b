package main

import (
	"flag"
	"strings"

	"github.com/urfave/cli/v2"
)

// memberFlag is --member, repeatable. The library's own slice flag splits values at commas and adds what the
// environment says to what the line says; a member's line must stay whole, and the line must win.
type memberFlag struct {
	values memberValues
}

// memberValues collects the values.
type memberValues struct{ all []string }

func (v *memberValues) Set(s string) error { v.all = append(v.all, s); return nil }
func (v *memberValues) String() string     { return strings.Join(v.all, ",") }

func (f *memberFlag) Apply(set *flag.FlagSet) error {
	set.Var(&f.values, "member", f.GetUsage())
	return nil
}

func (f *memberFlag) Names() []string  { return []string{"member"} }
func (f *memberFlag) IsSet() bool      { return len(f.values.all) > 0 }
func (f *memberFlag) String() string   { return cli.FlagStringer(f) }
func (f *memberFlag) TakesValue() bool { return true }
func (f *memberFlag) GetUsage() string {
	return "`N=HOST:PORT:PORT`, one for each member, as server.N in zoo.cfg (e.g. '1=h1:2888:3888;2181')"
}
func (f *memberFlag) GetValue() string       { return "" }
func (f *memberFlag) GetDefaultText() string { return "" }
func (f *memberFlag) GetEnvVars() []string   { return nil }
