package cluster

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// clockTick is the unit of /proc/PID/stat: USER_HZ is 100 on every Linux port that Go supports.
const clockTick = 10 * time.Millisecond

// CPU is the processor time that a process has used so far, user and system.
func CPU(pid int) (time.Duration, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	// The second field, the name in parentheses, may hold anything; count from behind it.
	_, rest, ok := bytes.Cut(text, []byte(") "))
	fields := strings.Fields(string(rest))
	if !ok || len(fields) < 13 {
		return 0, fmt.Errorf("process %d: unexpected stat %q", pid, text)
	}
	var ticks int64
	for _, f := range fields[11:13] { // utime, stime
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return 0, err
		}
		ticks += n
	}
	return time.Duration(ticks) * clockTick, nil
}

// Memory is a process's resident memory in bytes, now and at its highest.
type Memory struct{ Resident, Peak int64 }

// MemoryOf reads VmRSS and VmHWM.
func MemoryOf(pid int) (Memory, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return Memory{}, err
	}
	var m Memory
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if len(f) < 2 {
			continue
		}
		kib, _ := strconv.ParseInt(f[1], 10, 64)
		switch f[0] {
		case "VmRSS:":
			m.Resident = kib << 10
		case "VmHWM:":
			m.Peak = kib << 10
		}
	}
	if m.Resident == 0 {
		return m, fmt.Errorf("process %d: no VmRSS", pid)
	}
	return m, nil
}
