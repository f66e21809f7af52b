package ensemble

import (
	"fmt"
	"sync/atomic"
	"time"
)

// endLimit is how long one step of a member's end may take before the member is abandoned. A disk that is only slow
// closes in less; a failed one is noticed by the log, which does not wait for it.
const endLimit = 10 * time.Second

// endStep is one part of a member that stops.
type endStep struct {
	name string
	stop func()
}

// endSteps takes the member apart from the top down. Any of them may wait for the disk: the transport receives and
// sends snapshots, the applier and the reader read the log, the disk watch asks for free space.
func (m *Member) endSteps() []endStep {
	steps := []endStep{
		{"loop", func() {
			m.port.stopAccepting()
			close(m.loop.stop)
			<-m.loop.done
			m.inbox.close()
			m.intake.close()
		}},
	}
	if m.net != nil {
		steps = append(steps, endStep{"peer connections", func() { _ = m.net.Close() }})
	}
	return append(steps,
		endStep{"applier", m.applier.close},
		endStep{"client port", m.port.close},
		endStep{"snapshots", func() {
			m.cancel()
			m.snaps.group.Wait()
		}},
		endStep{"log reader", m.reader.close},
		endStep{"disk watch", func() {
			close(m.disk.stop)
			<-m.disk.done
		}},
		endStep{"log", func() {
			if err := m.wal.Close(); err != nil {
				m.setEnd(fmt.Errorf("closing the log: %w", err))
			}
		}},
	)
}

// end takes the member apart and waits for every goroutine of it, or abandons those that hang in the disk: the handle
// of a disk that does not answer cannot be closed, and whoever embeds the member must not wait for it for ever.
func (m *Member) end() {
	m.once.Do(func() {
		close(m.closing)
		steps := m.endSteps()
		var at atomic.Int32
		finished := make(chan struct{}, 1)
		moved := make(chan struct{}, len(steps))
		go func() {
			for i := range steps {
				at.Store(int32(i))
				steps[i].stop()
				moved <- struct{}{}
			}
			finished <- struct{}{}
		}()
		timer := time.NewTimer(m.endLimit)
		defer timer.Stop()
		for running := true; running; {
			select {
			case <-moved:
				timer.Reset(m.endLimit)
			case <-finished:
				running = false
			case <-timer.C:
				running = false
				m.abandon(steps, int(at.Load()))
			}
		}
		m.cfg.Listeners.close()
		m.log.Info("stopped")
		close(m.done)
	})
	<-m.done
}

// abandon cuts what needs no disk, so that nobody outside takes the member for alive.
func (m *Member) abandon(steps []endStep, at int) {
	m.setEnd(fmt.Errorf("%w: %s has not ended in %v", ErrAbandoned, steps[at].name, m.endLimit))
	m.log.Error("member abandoned", "waits_for", steps[at].name, "after", m.endLimit.String())
	m.cancel()
	if m.net != nil {
		go func() { _ = m.net.Close() }() // cuts at once, then waits
	}
	go m.port.close()
}

// setEnd keeps the first reason why the member ended badly.
func (m *Member) setEnd(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.err == nil {
		m.err = err
	}
}
