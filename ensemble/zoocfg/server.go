package zoocfg

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
)

// Server is one server.N line, or one --member N=.
type Server struct {
	ID           uint64
	Host         string
	LearnerPort  int // ZooKeeper's quorum port
	ElectionPort int
	Observer     bool
	// ClientHost and ClientPort come from the part behind the semicolon. ClientPort 0: the line has none.
	ClientHost string
	ClientPort int
}

// String is the canonical form, as /zookeeper/config shows it.
func (s Server) String() string {
	role := "participant"
	if s.Observer {
		role = "observer"
	}
	text := fmt.Sprintf("server.%d=%s:%d:%d:%s", s.ID, bracketed(s.Host), s.LearnerPort, s.ElectionPort, role)
	if s.ClientPort != 0 {
		text += fmt.Sprintf(";%s:%d", bracketed(s.ClientHost), s.ClientPort)
	}
	return text
}

// ClientAddr is the client address of the line as host:port, empty if it has none.
func (s Server) ClientAddr() string {
	if s.ClientPort == 0 {
		return ""
	}
	return net.JoinHostPort(s.ClientHost, strconv.Itoa(s.ClientPort))
}

func bracketed(host string) string {
	if strings.Contains(host, ":") {
		return "[" + host + "]"
	}
	return host
}

// parseServer reads host:quorumPort:electionPort[:role][|...][;[clientHost:]clientPort][;[secureHost:]securePort].
func parseServer(id uint64, value string) (Server, error) {
	s := Server{ID: id}
	parts := strings.Split(value, ";")
	if len(parts) > 3 {
		return s, errors.New("it has more than two parts behind semicolons")
	}
	if len(parts) == 3 && strings.TrimSpace(parts[2]) != "" {
		return s, errors.New("the secure client port behind the second semicolon is not supported (TLS comes later)")
	}
	if strings.Contains(parts[0], "|") {
		return s, errors.New("several addresses for one member ('|', multiAddress.enabled) are not supported")
	}
	fields, err := splitColons(strings.TrimSpace(parts[0]))
	if err != nil {
		return s, err
	}
	if len(fields) < 3 || len(fields) > 4 {
		return s, errors.New("it is not host:quorumPort:electionPort[:role]")
	}
	if s.Host = fields[0]; s.Host == "" {
		return s, errors.New("the host is empty")
	}
	if s.LearnerPort, err = parsePort(fields[1]); err != nil {
		return s, fmt.Errorf("quorum port: %w", err)
	}
	if s.ElectionPort, err = parsePort(fields[2]); err != nil {
		return s, fmt.Errorf("election port: %w", err)
	}
	if s.LearnerPort == s.ElectionPort {
		return s, fmt.Errorf("quorum port and election port are both %d", s.LearnerPort)
	}
	if len(fields) == 4 {
		switch strings.ToLower(fields[3]) {
		case "participant":
		case "observer":
			s.Observer = true
		default:
			return s, fmt.Errorf("the role %q is neither participant nor observer", fields[3])
		}
	}
	if len(parts) >= 2 && strings.TrimSpace(parts[1]) != "" {
		fields, err := splitColons(strings.TrimSpace(parts[1]))
		if err != nil {
			return s, err
		}
		switch len(fields) {
		case 1:
			s.ClientHost = "0.0.0.0"
		case 2:
			if s.ClientHost = fields[0]; s.ClientHost == "" {
				s.ClientHost = "0.0.0.0"
			}
		default:
			return s, fmt.Errorf("%q is not [host:]clientPort", parts[1])
		}
		if s.ClientPort, err = parsePort(fields[len(fields)-1]); err != nil {
			return s, fmt.Errorf("client port: %w", err)
		}
	}
	return s, nil
}

// splitColons splits at colons, keeping [IPv6] together and taking its brackets off.
func splitColons(s string) ([]string, error) {
	var fields []string
	for {
		if strings.HasPrefix(s, "[") {
			host, rest, ok := strings.Cut(s[1:], "]")
			if !ok {
				return nil, fmt.Errorf("%q has no closing bracket", s)
			}
			if net.ParseIP(stripZone(host)) == nil {
				return nil, fmt.Errorf("[%s] is no IPv6 address", host)
			}
			fields = append(fields, host)
			if rest == "" {
				return fields, nil
			}
			if !strings.HasPrefix(rest, ":") {
				return nil, fmt.Errorf("%q follows the bracket", rest)
			}
			s = rest[1:]
			continue
		}
		field, rest, more := strings.Cut(s, ":")
		fields = append(fields, strings.TrimSpace(field))
		if !more {
			return fields, nil
		}
		s = rest
	}
}

func stripZone(ip string) string {
	ip, _, _ = strings.Cut(ip, "%")
	return ip
}

func parsePort(s string) (int, error) {
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 || n > 65535 {
		return 0, fmt.Errorf("%q is no port between 1 and 65535", s)
	}
	return n, nil
}

func parseID(s string) (uint64, error) {
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil || n < 1 || n > 255 {
		return 0, fmt.Errorf("%q is no member id between 1 and 255", s)
	}
	return n, nil
}

// ParseMembers reads members given as N=host:quorumPort:electionPort..., and joins all problems in one error.
func ParseMembers(members []string) ([]Server, error) {
	var servers []Server
	var errs []error
	for _, m := range members {
		n, value, ok := strings.Cut(m, "=")
		if !ok {
			errs = append(errs, fmt.Errorf("member %q is not N=host:port:port", m))
			continue
		}
		id, err := parseID(strings.TrimSpace(n))
		if err != nil {
			errs = append(errs, fmt.Errorf("member %q: %w", m, err))
			continue
		}
		s, err := parseServer(id, value)
		if err != nil {
			errs = append(errs, fmt.Errorf("member %q: %w", m, err))
			continue
		}
		servers = append(servers, s)
	}
	return servers, errors.Join(errs...)
}
