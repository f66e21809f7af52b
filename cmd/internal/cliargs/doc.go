// Package cliargs makes urfave/cli/v2 read a command line the way people write it, for kvd and kv.
//
// The library stops looking for flags at the first argument, so "kv set /a 1 --version 3" would write
// unconditionally. [Reorder] moves flags in front of the arguments first, knowing which flags take a value and
// which belong to the program and which to the command. [Main] runs an application with it and gives the exit
// codes of design 6: wrong usage is 2, whatever the library would have said.
//
// The rules, in order:
//
//   - after "--" nothing is a flag; a lone "-" is an argument
//   - a known flag counts anywhere before "--": "--name value", "--name=value", "-n value", "-rf" for "-r -f"
//   - the command's flags win over the program's flags of the same name, once the command was named
//   - after the first argument of a command, a token that is no known flag, such as "-5", is an argument
//   - before it, such a token is an unknown flag
package cliargs
