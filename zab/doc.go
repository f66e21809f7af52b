// Package zab agrees on one order of transactions: discovery, synchronization and broadcast of the Zab
// protocol (Junqueira, Reed, Serafini, DSN'11) with the rules that practice added to it.
package zab
