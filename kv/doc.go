// Package kv is the tree: what a node is, what each operation does to it, and how that is written down, with no
// idea that other members exist.
package kv
