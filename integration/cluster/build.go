package cluster

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// Binaries are the paths of the two programs.
type Binaries struct{ Kvd, Kv string }

// Build compiles both commands the way they are shipped (static, trimmed) into dir.
func Build(dir string) (Binaries, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return Binaries{}, err
	}
	cmd := exec.Command("go", "build", "-trimpath", "-o", dir+string(filepath.Separator), "kvd/cmd/kvd", "kvd/cmd/kv")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		return Binaries{}, fmt.Errorf("build kvd and kv: %w\n%s", err, out.String())
	}
	return Binaries{Kvd: filepath.Join(dir, "kvd"), Kv: filepath.Join(dir, "kv")}, nil
}
