package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"kvd/ensemble"
	"kvd/kv/client"
	"kvd/wal"
)

// dataDir is the member's directory on its in-memory file system.
const dataDir = "member"

// member is one machine: a disk that survives cuts as far as it was synced, and now and then a running member.
type member struct {
	id     ensemble.MemberID
	peers  []ensemble.Peer
	noSync bool
	log    *slog.Logger

	mu      sync.Mutex
	running *ensemble.Member // nil without power
	disk    *disk
	first   ensemble.Listeners // of the first start
}

// newMembers makes n members with ports from the kernel, without power.
func newMembers(dir string, n int, noSync bool, log *slog.Logger) ([]*member, error) {
	var members []*member
	var peers []ensemble.Peer
	for i := range n {
		learner, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		election, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		id := ensemble.MemberID(i + 1)
		d, err := newDisk(filepath.Join(dir, fmt.Sprintf("member-%d", id)))
		if err != nil {
			return nil, err
		}
		peers = append(peers, ensemble.Peer{ID: id, Host: "127.0.0.1",
			LearnerPort: learner.Addr().(*net.TCPAddr).Port, ElectionPort: election.Addr().(*net.TCPAddr).Port})
		members = append(members, &member{id: id, noSync: noSync, disk: d, log: log.With("member", id),
			first: ensemble.Listeners{Learner: learner, Election: election}})
	}
	for _, m := range members {
		m.peers = peers
	}
	return members, nil
}

// start switches the power on. The settings are small, so that snapshots, purges and syncs by SNAP happen all the time.
func (m *member) start(ctx context.Context) error {
	cfg := ensemble.Config{
		ID: m.id, DataDir: dataDir, Members: m.peers, FS: m.disk.fs, Snapshots: m.disk.snapshots,
		Listeners: m.first, UnsafeNoSync: m.noSync, Logger: m.log,
		SnapCount: 150, SnapshotLogBytes: 32 << 10, RetainEntries: 100, RetainBytes: 64 << 10,
	}
	m.first = ensemble.Listeners{}
	// Another process may have taken a port between the stop and now, for a moment.
	for attempt := 0; ; attempt++ {
		running, err := ensemble.Start(ctx, cfg)
		if err == nil {
			m.mu.Lock()
			m.running = running
			m.mu.Unlock()
			return nil
		}
		var op *net.OpError
		if !errors.As(err, &op) || attempt == 50 {
			return err
		}
		if err := wait(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
}

// cut takes the power away: from one instant on nothing reaches the disk. What runs on is what the member's
// processor would have done in the same instant; whatever it says still speaks only of synced writes, and those
// are kept.
func (m *member) cut(percent int, rng *rand.Rand) { m.disk.cut(percent, rng) }

// stop ends what is left of the running member.
func (m *member) stop() {
	m.mu.Lock()
	running := m.running
	m.running = nil
	m.mu.Unlock()
	if running != nil {
		_ = running.Close() // with the error of its dead disk
	}
}

// lost replaces the disk by what the cut left of it, and says what the log itself finds missing there.
func (m *member) lost() (string, error) {
	if err := m.disk.replace(); err != nil {
		return "", err
	}
	if _, err := m.disk.fs.Stat(dataDir); err != nil {
		return "the whole directory is gone", nil
	}
	_, r, err := wal.Inspect(dataDir, wal.Options{FS: m.disk.fs})
	if r.Blank {
		return "the log is blank", err
	}
	return r.Suspect, err
}

// accept makes what can be read of the log its whole history, as kvd recover --accept-up-to does.
func (m *member) accept() error {
	if _, err := m.disk.fs.Stat(dataDir); err != nil {
		return wal.ErrNotAccepted // nothing is left
	}
	o := wal.Options{FS: m.disk.fs}
	st, _, err := wal.Inspect(dataDir, o)
	if err == nil {
		_, err = wal.Accept(dataDir, o, st.Last)
	}
	return err
}

// wipe leaves nothing on the disk.
func (m *member) wipe() error {
	if _, err := m.disk.fs.Stat(dataDir); err != nil {
		return nil // it is gone already
	}
	return m.disk.fs.RemoveAll(dataDir)
}

func (m *member) current() *ensemble.Member {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.running
}

var errNoPower = errors.New("no power")

// dial opens a client that knows only this member.
func (m *member) dial(ctx context.Context) (*client.Client, error) {
	running := m.current()
	if running == nil {
		return nil, errNoPower
	}
	return running.Client(ctx)
}

func (m *member) status() (ensemble.Status, bool) {
	running := m.current()
	if running == nil {
		return ensemble.Status{}, false
	}
	return running.Status(), true
}

func (m *member) waitServing(ctx context.Context) error {
	running := m.current()
	if running == nil {
		return errNoPower
	}
	return running.WaitServing(ctx)
}

// copyFile copies at most n bytes of a file.
func copyFile(from, to string, n int64) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, io.LimitReader(in, n))
	return errors.Join(err, out.Close())
}
