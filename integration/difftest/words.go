package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
)

// wordDeadline bounds the wait for what servers do on their own time: a connection that was cut is noticed late.
const wordDeadline = 5 * time.Second

// word compares a four-letter word's answers, as far as they speak of what the sequence did. What they say of watches
// must be what the model says of each side (rules watch-words and one-shot-beside-persistent).
func (r *runner) word(s *Step) error {
	deadline := time.Now().Add(wordDeadline)
	w := s.Word[:4]
	for {
		var texts, norm, want [2]string
		for i, side := range r.sides {
			t, err := word(side.addrs[s.Member%side.clientMembers()], s.Word)
			if err != nil {
				return fmt.Errorf("%s: %s: %w", side.name, s.Word, err)
			}
			texts[i] = t
			norm[i] = r.normalWord(i, w, s.Member, t)
		}
		want[0], want[1] = norm[0], norm[0]
		switch {
		case w == "wchs" || w == "wchc" || w == "wchp":
			want[0], want[1] = r.watchWord(r.m.old, w, s.Member), r.watchWord(r.m.new, w, s.Member)
			if r.same {
				want[1] = want[0]
			}
		case w == "srvr" && !r.same:
			want[1] += "\n" + strings.Join(ownLines, "\n")
		}
		if norm[0] == want[0] && norm[1] == want[1] {
			if want[0] != want[1] {
				r.hits[map[bool]string{true: "own-lines", false: "watch-words"}[w == "srvr"]]++
			}
			return nil
		}
		if time.Now().After(deadline) {
			where := fmt.Sprintf("word %q to member %d", s.Word, s.Member)
			if norm[0] != want[0] {
				return r.wrongModel(where, "another answer of ZooKeeper", texts[0]+norm[0], want[0])
			}
			return r.differ(where, "another answer", texts[0], want[1], norm[1])
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// ownLines are the keys of the lines that kvd adds to srvr, behind ZooKeeper's.
var ownLines = []string{"Kvd version", "Member", "Pid", "Role", "Leader", "Epoch", "Health", "Digest", "Members"}

var (
	sessionText = regexp.MustCompile(`0x[0-9a-f]+`)
	mntrKeys    = map[string]bool{"zk_server_state": true, "zk_watch_count": true, "zk_ephemerals_count": true, "zk_znode_count": true}
)

// count is the number of watches on a member.
func (s *watchState) count(member int) int {
	n := 0
	for _, t := range []watchTable{s.data, s.child} {
		for _, w := range t {
			for c := range w {
				if c.member == member {
					n++
				}
			}
		}
	}
	return n
}

// watchWord is what a word must say of a member's data table (protocol 10.2), normalised.
func (r *runner) watchWord(s *watchState, w string, member int) string {
	byConn, byPath, total := map[string][]string{}, map[string][]string{}, 0
	name := func(c *conn) string { return fmt.Sprintf("session%d", c.slot) }
	for c := range s.ever {
		if s.old && c.member == member {
			byConn[name(c)] = nil
		}
	}
	for p, m := range s.data {
		for c := range m {
			if c.member == member {
				if s.old {
					p = string([]rune(p)) // Java has replaced what was not UTF-8
				}
				byConn[name(c)] = append(byConn[name(c)], p)
				byPath[p] = append(byPath[p], name(c))
				total++
			}
		}
	}
	group := func(m map[string][]string) string {
		var all []string
		for k, l := range m {
			slices.Sort(l)
			all = append(all, strings.Join(append([]string{k}, l...), "|\t"))
		}
		slices.Sort(all)
		return strings.Join(all, "\n")
	}
	switch w {
	case "wchc":
		return group(byConn)
	case "wchp":
		return group(byPath)
	}
	return fmt.Sprintf("%d connections watching %d paths\nTotal watches:%d\n", len(byConn), len(byPath), total)
}

// normalWord keeps of a word's answer what must be equal.
func (r *runner) normalWord(side int, w string, member int, t string) string {
	name := func(id string) string {
		for slot, sn := range r.m.sessions {
			if fmt.Sprintf("0x%x", uint64(sn.ids[side])) == id {
				return fmt.Sprintf("session%d", slot)
			}
		}
		return id
	}
	switch w {
	case "srvr":
		var keep []string
		for line := range strings.Lines(t) {
			key, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ":")
			switch key {
			case "Mode", "Node count":
				keep = append(keep, key+":"+strings.TrimSpace(value))
			default:
				keep = append(keep, key)
			}
		}
		return strings.Join(keep, "\n")
	case "mntr":
		var keep []string
		for line := range strings.Lines(t) {
			key, value, _ := strings.Cut(strings.TrimSpace(line), "\t")
			if !mntrKeys[key] {
				continue
			}
			if key == "zk_watch_count" {
				state := r.m.new
				if side == 0 || r.same {
					state = r.m.old
				}
				if n := state.count(member); value == fmt.Sprint(n) {
					value = "as the model"
				} else {
					value += fmt.Sprintf(" for %d", n)
				}
			}
			keep = append(keep, key+"="+value)
		}
		slices.Sort(keep)
		return strings.Join(keep, "\n")
	case "wchc", "wchp":
		// Groups and their members are sets.
		var groups []string
		for _, g := range strings.Split(strings.Trim(strings.ReplaceAll(t, "\n\t", "\x02\x02\t"), "\n"), "\n") {
			parts := strings.Split(sessionText.ReplaceAllStringFunc(g, name), "\x02\x02")
			if len(parts) > 1 {
				slices.Sort(parts[1:])
			}
			groups = append(groups, strings.Join(parts, "|"))
		}
		slices.Sort(groups)
		return strings.Join(groups, "\n")
	}
	return t
}
