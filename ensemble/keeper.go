package ensemble

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"kvd/wal"
)

// ErrDiverged ends a member whose tree was found to be wrong: the other members have another one at the same zxid, or it is
// not what was put together here any more. A member that is started again on the directory believes of its own state only
// what is known to be right, and is synced from the others.
var ErrDiverged = errors.New("ensemble: this member's tree is wrong")

// Keeper runs one member in this process, and starts it again on the same sockets when it ended because of something that
// a new start cures: its log was found damaged, or its tree wrong. Both are set aside by the start, and the member is synced
// from the others while they serve. One that ended for want of disk space is started again when there is enough. Every other
// end of the member ends the Keeper.
type Keeper struct {
	cfg     Config
	sockets keptListeners

	mu      sync.Mutex
	member  *Member
	changed chan struct{} // closed when member is replaced, or none will follow it
	err     error
	starts  []time.Time // of members started again, within restartSpan

	stop chan struct{} // closed by Shutdown: no further member is wanted
	once sync.Once
	done chan struct{}
}

// A machine that damages whatever it holds is not to be trusted with more: after so many new starts within the span the
// end of the member is the end of the Keeper.
const (
	maxRestarts = 5
	restartSpan = time.Hour
)

// Keep starts a member as Start does and keeps it running. While there is too little disk space for the first start it
// waits, saying so, until ctx ends.
func Keep(ctx context.Context, cfg Config) (*Keeper, error) {
	if err := awaitFirstSpace(ctx, cfg); err != nil {
		cfg.Listeners.close()
		return nil, err
	}
	m, err := Start(ctx, cfg)
	if err != nil {
		return nil, err
	}
	// The member closes its sockets when it ends; copies of them keep the addresses.
	sockets, err := keepListeners(m.cfg.Listeners)
	if err != nil {
		return nil, errors.Join(err, m.Close())
	}
	k := &Keeper{cfg: m.cfg, sockets: sockets, member: m, changed: make(chan struct{}), stop: make(chan struct{}), done: make(chan struct{})}
	k.cfg.Logger = cfg.Logger
	go k.run()
	return k, nil
}

// run waits for the end of one member after the other.
func (k *Keeper) run() {
	defer close(k.done)
	defer k.sockets.close()
	for {
		m, _ := k.current()
		<-m.Done()
		err := m.Err()
		select {
		case <-k.stop:
			k.end(err)
			return
		default:
		}
		for again := true; again; {
			short := outOfSpace(err)
			// The end at the floor is one in order, and the wait for twice that paces what follows.
			if !curable(err) && !short || !errors.Is(err, ErrNoSpace) && !k.mayRestart(time.Now()) {
				k.end(err)
				return
			}
			if short {
				k.awaitSpace()
			} else {
				m.log.Warn("starting again, to be synced from the others", "because", err)
			}
			rerr := k.restart()
			select {
			case <-k.stop: // the sockets are gone
				if rerr != nil {
					k.end(err)
					return
				}
			default:
			}
			// What is free when a start was decided may be gone when it opens the log.
			if again = outOfSpace(rerr); again {
				err = rerr
			} else if rerr != nil {
				k.end(rerr)
				return
			}
		}
	}
}

// curable says whether a new start sets aside what the member ended for.
func curable(err error) bool {
	return (errors.Is(err, wal.ErrDamaged) || errors.Is(err, ErrDiverged)) && !errors.Is(err, ErrAbandoned)
}

func (k *Keeper) mayRestart(now time.Time) bool {
	for len(k.starts) > 0 && now.Sub(k.starts[0]) > restartSpan {
		k.starts = k.starts[1:]
	}
	if len(k.starts) >= maxRestarts {
		return false
	}
	k.starts = append(k.starts, now)
	return true
}

// restart replaces the member.
func (k *Keeper) restart() error {
	cfg := k.cfg
	var err error
	if cfg.Listeners, err = k.sockets.again(); err != nil {
		return err
	}
	m, err := Start(context.Background(), cfg)
	if err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	close(k.changed)
	k.member, k.changed = m, make(chan struct{})
	return nil
}

func (k *Keeper) end(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.err = err
	close(k.changed)
}

// current is the present member, and what tells that it no longer is.
func (k *Keeper) current() (*Member, <-chan struct{}) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.member, k.changed
}

// Member is the present member; while one is being replaced, the one that has ended.
func (k *Keeper) Member() *Member {
	m, _ := k.current()
	return m
}

// ID is the member's configured id.
func (k *Keeper) ID() MemberID { return k.Member().ID() }

// Status reports the present member's state.
func (k *Keeper) Status() Status { return k.Member().Status() }

// Restarts is how often the member was started again in the last hour.
func (k *Keeper) Restarts() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.starts)
}

// WaitServing blocks until a member has answered clients, ctx ends, or the Keeper does (its error, or ErrClosed).
func (k *Keeper) WaitServing(ctx context.Context) error {
	for {
		m, changed := k.current()
		err := m.WaitServing(ctx)
		if err == nil || ctx.Err() != nil {
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
		if now, _ := k.current(); now == m {
			return err
		}
	}
}

// Done is closed when the last member has ended and none will be started any more.
func (k *Keeper) Done() <-chan struct{} { return k.done }

// Err is why: see Member.Err.
func (k *Keeper) Err() error {
	select {
	case <-k.done:
	default:
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.err
}

// Shutdown stops the present member in order, as Member.Shutdown does, and the Keeper.
func (k *Keeper) Shutdown(ctx context.Context) error {
	return k.stopMember(func(m *Member) error { return m.Shutdown(ctx) })
}

// Close cuts everything, as Member.Close does.
func (k *Keeper) Close() error { return k.stopMember((*Member).Close) }

// stopMember lets no member follow the present one and ends that. If it is being replaced right now the next one has its
// turn too.
func (k *Keeper) stopMember(end func(*Member) error) error {
	k.once.Do(func() { close(k.stop) })
	k.sockets.close() // whoever calls from now on is refused, and does not wait until the end
	for {
		m, changed := k.current()
		err := end(m)
		<-changed
		if now, _ := k.current(); now == m {
			<-k.done
			return err
		}
	}
}

// keptListeners are copies of a member's sockets. Closing an os.File twice is harmless, and so is using a closed one.
type keptListeners struct {
	client            []*os.File
	learner, election *os.File
}

// keepListeners copies the sockets of l, which stay whose they are. What is no socket cannot be copied.
func keepListeners(l Listeners) (k keptListeners, err error) {
	dup := func(l net.Listener) (f *os.File) {
		if l == nil || err != nil {
			return nil
		}
		s, ok := l.(interface{ File() (*os.File, error) })
		if !ok {
			err = fmt.Errorf("ensemble: a listener of type %T cannot be kept", l)
			return nil
		}
		f, err = s.File()
		return f
	}
	for _, c := range l.Client {
		k.client = append(k.client, dup(c))
	}
	k.learner, k.election = dup(l.Learner), dup(l.Election)
	if err != nil {
		k.close()
	}
	return k, err
}

// again returns listeners on the kept sockets.
func (k *keptListeners) again() (l Listeners, err error) {
	listen := func(f *os.File) (n net.Listener) {
		if f == nil || err != nil {
			return nil
		}
		n, err = net.FileListener(f)
		return n
	}
	for _, f := range k.client {
		if c := listen(f); c != nil {
			l.Client = append(l.Client, c)
		}
	}
	l.Learner, l.Election = listen(k.learner), listen(k.election)
	if err != nil {
		l.close()
		return Listeners{}, err
	}
	return l, nil
}

func (k *keptListeners) close() {
	for _, f := range append([]*os.File{k.learner, k.election}, k.client...) {
		if f != nil {
			_ = f.Close()
		}
	}
}
