package app

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"promethean"
	"promethean/internal/app/config"
	"promethean/store"
)

// reloadWait bounds how long topics may take to be set by a reload.
const reloadWait = 30 * time.Second

// reload reads the settings again and applies what a running hub can change.
// It gives the settings in force. A configuration that is wrong in any way
// changes nothing.
func (s *server) reload(ctx context.Context, old *config.Config, load func() (*config.Config, error)) *config.Config {
	c, err := load()
	var known *login
	if err == nil && c.Auth.On() && s.login != nil {
		known, err = newLogin(c, s.log)
	}
	if err == nil && c.TLS.On() && s.certs != nil {
		err = s.certs.use(c.TLS)
	}
	if err != nil {
		known.close()
		s.log.Error("the new configuration is wrong, nothing has changed", "err", shown(err))
		return old
	}
	if fixed := config.Differences(old, c); len(fixed) > 0 {
		s.log.Warn("some settings change only with a restart", "settings", strings.Join(fixed, ", "))
	}
	if known != nil {
		s.login.take(known)
	}
	s.gateway.Adjust(s.hosts(c), c.Origins, c.Limits.ConnectionRate, c.Limits.TopicRate)
	setLevel(s.level, c.Log)
	ctx, cancel := context.WithTimeout(ctx, reloadWait)
	defer cancel()
	if err := setTopics(ctx, s.hub, c.Topics, s.log); err != nil {
		s.log.Error("some topics keep their settings", "err", shown(err))
	}
	s.log.Info("the configuration was read again", "config", c.File)
	return s.keep(c, old)
}

// keep gives the settings in force after a reload: those that cannot change are
// the old ones, so that the next reload names them again.
func (s *server) keep(c, old *config.Config) *config.Config {
	now := *c
	config.KeepFixed(&now, old)
	return &now
}

// setTopics gives topics the settings that the file names. Those that it leaves
// out stay as they are, and a topic that has them already is left alone.
func setTopics(ctx context.Context, hub *promethean.Hub, topics []config.Topic, log *slog.Logger) error {
	if len(topics) == 0 {
		return nil
	}
	have := make(map[string]store.Settings)
	for t, err := range hub.Topics(ctx) {
		if err != nil {
			return fmt.Errorf("set topics: %w", err)
		}
		have[t.Name] = t.Settings
	}
	for _, t := range topics {
		was, exists := have[t.Name]
		now, changed := was, !exists
		set(&now.Retention, t.Retention, &changed)
		set(&now.MaxBytes, t.MaxBytes, &changed)
		set(&now.Async, t.Async, &changed)
		if t.Partitions != nil && max(now.Partitions, 1) != *t.Partitions {
			now.Partitions, changed = *t.Partitions, true
		}
		if !changed {
			continue
		}
		if err := hub.SetTopic(ctx, t.Name, now); err != nil {
			return fmt.Errorf("%s: %w", t.Place, err)
		}
		log.Info("topic set", "topic", t.Name, "retention", now.Retention.String(), "max_bytes", now.MaxBytes, "partitions", max(now.Partitions, 1), "async", now.Async)
	}
	return nil
}

// set changes a setting that was given.
func set[T comparable](at, to *T, changed *bool) {
	if to != nil && *at != *to {
		*at, *changed = *to, true
	}
}
