package app

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"promethean"
	"promethean/compact"
	"promethean/internal/app/config"
	"promethean/schema"
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
	if err := setTopics(ctx, s.hub, s.schemas, s.squeezer, c, s.log); err != nil {
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
func setTopics(ctx context.Context, hub *promethean.Hub, reg *schema.Registry, by *compact.Compactor, c *config.Config, log *slog.Logger) error {
	if len(c.Topics) == 0 {
		return nil
	}
	have := make(map[string]store.Settings)
	for t, err := range hub.Topics(ctx) {
		if err != nil {
			return fmt.Errorf("set topics: %w", err)
		}
		have[t.Name] = t.Settings
	}
	for _, t := range c.Topics {
		was, exists := have[t.Name]
		now, changed := was, !exists
		set(&now.Retention, t.Retention, &changed)
		set(&now.MaxBytes, t.MaxBytes, &changed)
		set(&now.Async, t.Async, &changed)
		if t.Partitions != nil && max(now.Partitions, 1) != *t.Partitions {
			now.Partitions, changed = *t.Partitions, true
		}
		about, err := setSchemas(ctx, reg, &t, &now, c.File, log)
		if err != nil {
			return fmt.Errorf("%s: %w", t.Place, err)
		}
		squeezed, err := setCompaction(&t, &now)
		if err != nil {
			return fmt.Errorf("%s: %w", t.Place, err)
		}
		if !changed && !about && !squeezed {
			continue
		}
		if squeezed {
			if err := by.Prepare(ctx, t.Name, was, now); err != nil {
				return fmt.Errorf("%s: %w", t.Place, err)
			}
		}
		if err := reg.Apply(ctx, t.Name, was, now, func() error { return hub.SetTopic(ctx, t.Name, now) }); err != nil {
			return fmt.Errorf("%s: %w", t.Place, err)
		}
		log.Info("topic set", "topic", t.Name, "retention", now.Retention.String(), "max_bytes", now.MaxBytes, "partitions", max(now.Partitions, 1), "async", now.Async)
	}
	return nil
}

// setCompaction changes the settings of a topic that are about compaction.
func setCompaction(t *config.Topic, s *store.Settings) (changed bool, err error) {
	set, err := compact.SettingsOf(*s)
	if err != nil {
		return false, err
	}
	was := s.Meta
	if t.Compaction != nil {
		set.Compaction = *t.Compaction
	}
	if t.History != nil {
		set.History = compact.Age(*t.History)
	}
	if t.Tombstones != nil {
		set.Tombstones = compact.Age(*t.Tombstones)
	}
	if t.Snapshot != nil {
		set.Snapshot = *t.Snapshot
	}
	if err := set.Put(s); err != nil {
		return false, err
	}
	return !bytes.Equal(was, s.Meta), nil
}

// setSchemas loads the schemas of a topic, and changes its settings that are
// about them.
func setSchemas(ctx context.Context, reg *schema.Registry, t *config.Topic, s *store.Settings, file string, log *slog.Logger) (changed bool, err error) {
	was := *s
	set, err := schema.SettingsOf(was)
	if err != nil {
		return false, err
	}
	if t.Schemas != nil {
		set.Dir = beside(*t.Schemas, file)
		// Files may have come since the last time.
		fresh, err := reg.Load(ctx, t.Name, set.Dir)
		if err != nil {
			return false, err
		}
		if fresh {
			log.Info("schemas registered", "topic", t.Name, "directory", set.Dir, "latest", reg.Latest(t.Name).Version)
		}
	}
	if t.Strict != nil {
		set.Strict = *t.Strict
	}
	if t.LegacyVersion != nil {
		set.LegacyVersion = *t.LegacyVersion
	}
	if t.DualWrite != nil {
		set.DualWrite = *t.DualWrite
	}
	if err := set.Put(s); err != nil {
		return false, err
	}
	return !bytes.Equal(was.Meta, s.Meta), nil
}

// beside finds a directory that the configuration names: from where the file
// stands, or else from where the hub was started.
func beside(dir, file string) string {
	if filepath.IsAbs(dir) || file == "" {
		return dir
	}
	if there := filepath.Join(filepath.Dir(file), dir); isDir(there) {
		return there
	}
	return dir
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// set changes a setting that was given.
func set[T comparable](at, to *T, changed *bool) {
	if to != nil && *at != *to {
		*at, *changed = *to, true
	}
}
