package main

import (
	"kvd/integration/proxy"
)

// proxies are cutting proxies between members, where namespaces cannot be made: one for each port of each member and
// each other member that dials it. What is cut is kept and passed on when the cut is taken back, as TCP would send it
// again.
type proxies struct {
	links map[[2]int][]*proxy.Proxy // by {who dials, who is dialled}
}

// via returns the address by which member from dials addr of member to.
func (p *proxies) via(from, to int, addr string) (string, error) {
	x, err := proxy.New(addr)
	if err != nil {
		return "", err
	}
	p.links[[2]int{from, to}] = append(p.links[[2]int{from, to}], x)
	return x.Addr(), nil
}

// Cut implements network.
func (p *proxies) Cut(from, to int) error {
	p.stall(from, to, true)
	return nil
}

func (p *proxies) stall(from, to int, stalled bool) {
	for _, x := range p.links[[2]int{from, to}] {
		x.Stall(proxy.Up, stalled)
	}
	for _, x := range p.links[[2]int{to, from}] {
		x.Stall(proxy.Down, stalled)
	}
}

// Heal implements network.
func (p *proxies) Heal() error {
	for link := range p.links {
		p.stall(link[0], link[1], false)
	}
	return nil
}

// Close implements network.
func (p *proxies) Close() error {
	for _, all := range p.links {
		for _, x := range all {
			x.Close()
		}
	}
	return nil
}
