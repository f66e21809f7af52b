package ensemble

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
)

// hungFS is a file system whose operations of one kind do not return while it hangs.
type hungFS struct {
	vfs.FS
	statfs  bool // GetDiskUsage is the kind
	hangs   atomic.Bool
	entered chan struct{} // capacity 1
	release chan struct{}
}

func (h *hungFS) wait() {
	if h.hangs.Load() {
		select {
		case h.entered <- struct{}{}:
		default:
		}
		<-h.release
	}
}

// GetDiskUsage implements vfs.FS.
func (h *hungFS) GetDiskUsage(path string) (vfs.DiskUsage, error) {
	if h.statfs {
		h.wait()
	}
	return h.FS.GetDiskUsage(path)
}

// A disk that hangs does not hold up the end of its member: the handles are abandoned with an error that names what
// waits, Done is closed, and the clients are cut.
func TestHungDiskDoesNotHoldUpTheEnd(t *testing.T) {
	for _, c := range []struct {
		name, waitsFor string
		statfs         bool
		end            func(*Member) error
	}{
		{"statfs hangs, Close", "disk watch", true, (*Member).Close},
		{"log sync hangs, Close", "log", false, (*Member).Close},
		{"log sync hangs, Shutdown", "log", false, func(m *Member) error {
			ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
			defer cancel()
			return m.Shutdown(ctx)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := &hungFS{statfs: c.statfs, entered: make(chan struct{}, 1), release: make(chan struct{})}
			h.FS = vfs.NewMem()
			if !c.statfs {
				h.FS = errorfs.Wrap(h.FS, errorfs.InjectorFunc(func(op errorfs.Op) error {
					if op.Kind == errorfs.OpFileSyncData && strings.HasSuffix(op.Path, ".log") {
						h.wait()
					}
					return nil
				}))
			}
			var log logLines
			m, addr := startSingle(t, func(cfg *Config) { cfg.FS, cfg.Logger = h, log.logger() })
			defer close(h.release)
			m.endLimit = 100 * time.Millisecond
			r := dialRaw(t, addr)
			r.session()
			h.hangs.Store(true)
			if !c.statfs {
				r.send(createRequest(1, "/unknown", 0))
			}
			select {
			case <-h.entered:
			case <-time.After(rawLimit):
				t.Fatal("nothing reached the disk")
			}
			ended := make(chan error, 1)
			go func() { ended <- c.end(m) }()
			select {
			case err := <-ended:
				if !errors.Is(err, ErrAbandoned) || !strings.Contains(err.Error(), ": "+c.waitsFor+" has not ended") {
					t.Errorf("ended with %v", err)
				}
			case <-time.After(rawLimit):
				t.Fatal("the member's end waits for its disk")
			}
			<-m.Done()
			if err := m.Err(); !errors.Is(err, ErrAbandoned) {
				t.Errorf("Err() = %v", err)
			}
			r.wantClosed()
			if n := log.count("member abandoned"); n != 1 {
				t.Errorf("said %d times:\n%s", n, &log)
			}
		})
	}
}
