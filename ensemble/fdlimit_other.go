//go:build !unix

package ensemble

import "math"

// openFileLimit: there is none to speak of.
func openFileLimit() int { return math.MaxInt32 }
