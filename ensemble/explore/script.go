package explore

import (
	"fmt"
	"strings"
)

// Replay carries out a script as a Violation prints it and returns the state that it ends in. What stands behind a # is
// ignored, as are empty lines. The error is that of the last line if it breaks a property (ended is true), else says
// which line is none of the state's actions.
func Replay(m Model, script []string) (s State, ended bool, err error) {
	roots, err := m.Roots()
	if err != nil {
		return nil, false, err
	}
	s = roots[0]
	var actions []Action
	for i, line := range script {
		key := keyOf(line)
		if key == "" {
			continue
		}
		if n := 0; strings.HasPrefix(key, "root ") {
			if _, err := fmt.Sscanf(key, "root %d", &n); err != nil || n < 0 || n >= len(roots) {
				return nil, false, fmt.Errorf("explore: line %d: no such root: %s", i+1, key)
			}
			s = roots[n]
			continue
		}
		actions = s.Actions(actions[:0])
		taken := false
		for _, a := range actions {
			if keyOf(s.Describe(a)) != key {
				continue
			}
			next, err := s.Next(a)
			if err != nil {
				return next, true, fmt.Errorf("line %d: %w", i+1, err)
			}
			if next == nil {
				return nil, false, fmt.Errorf("explore: line %d leaves the bounds: %s", i+1, key)
			}
			s, taken = next, true
			break
		}
		if !taken {
			return nil, false, fmt.Errorf("explore: line %d is not possible here: %s", i+1, key)
		}
	}
	return s, false, nil
}

// keyOf is what identifies an action.
func keyOf(line string) string {
	key, _, _ := strings.Cut(line, "#")
	return strings.TrimSpace(key)
}
