package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"kvd/zab"
)

// listenMetrics opens the address of --metrics-listen, before any member is started; "" is none.
func listenMetrics(addr string) (net.Listener, error) {
	if addr == "" {
		return nil, nil
	}
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("--metrics-listen: %w", err)
	}
	return ln, nil
}

// serveMetrics answers Prometheus and pprof on ln, which may be nil, until stop is called.
func serveMetrics(ln net.Listener, members []runningMember, log *slog.Logger) (stop func()) {
	if ln == nil {
		return func() {}
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), statusCollector(members))
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := server.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
			log.Error("metrics listener ended", "error", err)
		}
	}()
	log.Info("metrics", "url", "http://"+ln.Addr().String()+"/metrics")
	return func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if server.Shutdown(ctx) != nil {
			_ = server.Close()
		}
		<-done
	}
}

// statusCollector turns each member's Status into gauges at every scrape.
type statusCollector []runningMember

var memberLabels = []string{"member"}

func gauge(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("kvd_"+name, help, append(memberLabels, labels...), nil)
}

var (
	descServing     = gauge("serving", "1 while clients are answered.")
	descLeading     = gauge("leading", "1 while the member leads.")
	descEpoch       = gauge("epoch", "Epoch of the leader followed.")
	descApplied     = gauge("applied_zxid", "Newest transaction that reads show.")
	descDurable     = gauge("durable_zxid", "Newest transaction on disk.")
	descCommitted   = gauge("committed_zxid", "Newest transaction known to be committed.")
	descSessions    = gauge("sessions", "Client sessions of the ensemble.")
	descConnections = gauge("connections", "Client connections of this member.")
	descRefused     = gauge("refused_connections", "Client connections that a limit refused since the start.")
	descOutstanding = gauge("outstanding_requests", "Requests taken in and not answered.")
	descNodes       = gauge("nodes", "Nodes in the tree.")
	descSuspect     = gauge("suspect", "1 while the member does not vote because it may have forgotten something.")
	descUptime      = gauge("uptime_seconds", "Seconds since the member started.")
	descRestarts    = gauge("restarts", "Times within an hour that the member was started again because its log was damaged or its tree wrong.")
	descLag         = gauge("learner_lag", "Transactions by which a learner of this leader is behind.", "learner")
)

// Describe implements prometheus.Collector.
func (statusCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descServing, descLeading, descEpoch, descApplied, descDurable, descCommitted, descSessions, descConnections,
		descRefused, descOutstanding, descNodes, descSuspect, descUptime, descRestarts, descLag} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c statusCollector) Collect(ch chan<- prometheus.Metric) {
	for _, m := range c {
		s := m.Status()
		id := strconv.FormatUint(uint64(s.ID), 10)
		set := func(d *prometheus.Desc, v float64) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, id)
		}
		set(descServing, truth(s.Serving))
		set(descLeading, truth(s.Role == zab.Leading))
		set(descEpoch, float64(s.Epoch))
		set(descApplied, float64(s.Applied))
		set(descDurable, float64(s.Durable))
		set(descCommitted, float64(s.Committed))
		set(descSessions, float64(s.Sessions))
		set(descConnections, float64(s.Connections))
		set(descRefused, float64(s.Refused))
		set(descOutstanding, float64(s.Outstanding))
		set(descNodes, float64(s.Nodes))
		set(descSuspect, truth(s.Suspect != ""))
		set(descUptime, s.Uptime.Seconds())
		if k, ok := m.(interface{ Restarts() int }); ok {
			set(descRestarts, float64(k.Restarts()))
		}
		for _, l := range s.Learners {
			ch <- prometheus.MustNewConstMetric(descLag, prometheus.GaugeValue, float64(l.Lag), id, strconv.FormatUint(uint64(l.ID), 10))
		}
	}
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
