//go:build !unix

package ensemble

// writable: opening the files will tell.
func writable(string) error { return nil }
