package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"strconv"
	"strings"

	"promethean"
	"promethean/event"
	"promethean/internal/app/config"
	"promethean/store"
	"promethean/store/mongostore"
	"promethean/store/natsstore"
)

// openHub opens the hub on the engine that the settings name.
func openHub(ctx context.Context, c *config.Config, o promethean.Options) (*promethean.Hub, error) {
	hub, err := openStore(ctx, c, o)
	if err == nil {
		return hub, nil
	}
	err = hideAddress(c.Store, err)
	if errors.Is(err, store.ErrInvalid) {
		return nil, misused{fmt.Errorf("%s: store: %w", c.Place("store"), err)}
	}
	return nil, err
}

// hideAddress takes secrets out of an error: an engine shows the address, which
// may hold a password.
func hideAddress(url string, err error) error {
	shown := config.Redact(url)
	if err == nil || shown == url {
		return err
	}
	_, address, _ := strings.Cut(url, "://")
	_, short, _ := strings.Cut(shown, "://")
	return redacted{err, strings.NewReplacer(url, shown, address, short)}
}

// redacted is an error without what must not be shown.
type redacted struct {
	error
	hide *strings.Replacer
}

func (e redacted) Error() string { return e.hide.Replace(e.error.Error()) }

// Unwrap gives the error.
func (e redacted) Unwrap() error { return e.error }

func openStore(ctx context.Context, c *config.Config, o promethean.Options) (*promethean.Hub, error) {
	scheme, rest, _ := strings.Cut(c.Store, "://")
	switch scheme {
	case "memory":
		return promethean.OpenMemory(o)
	case "file":
		return promethean.Open(rest, o)
	}
	log, err := openServer(ctx, c, o.Limits, o.Logger)
	if err != nil {
		return nil, err
	}
	return promethean.New(log, o)
}

// serverEngine is an engine over a server that several hubs share.
type serverEngine interface {
	store.Log
	store.Cursors
	store.Leases
}

// openServer opens the engine over NATS or MongoDB that the settings name.
func openServer(ctx context.Context, c *config.Config, limits event.Limits, logger *slog.Logger) (serverEngine, error) {
	scheme, rest, _ := strings.Cut(c.Store, "://")
	if scheme == "nats" {
		address, o, err := natsOptions(c, rest)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", store.ErrInvalid, err)
		}
		o.Limits, o.Logger = limits, logger
		return natsstore.Open(ctx, address, o)
	}
	return mongostore.Open(ctx, c.Store, mongostore.Options{Limits: limits, Logger: logger})
}

// natsOptions takes apart what comes behind nats://. A parameter of the address
// counts more than the setting of the same name.
func natsOptions(c *config.Config, rest string) (address string, o natsstore.Options, err error) {
	n := c.NATS
	hosts, query, _ := strings.Cut(rest, "?")
	params, err := url.ParseQuery(query)
	if err != nil {
		return "", o, fmt.Errorf("the parameters of the address: %w", err)
	}
	fields := map[string]*string{"ca": &n.CA, "cert": &n.Cert, "key": &n.Key, "creds": &n.Creds, "nkey": &n.NKey, "prefix": &n.Prefix}
	for name, values := range params {
		switch at := fields[name]; {
		case len(values) > 1:
			return "", o, fmt.Errorf("parameter %s comes twice", name)
		case at != nil:
			*at = values[0]
		case name == "replicas":
			if n.Replicas, err = strconv.Atoi(values[0]); err != nil {
				return "", o, fmt.Errorf("parameter replicas: %q is no number", values[0])
			}
		default:
			return "", o, fmt.Errorf("there is no parameter %q: it is ca, cert, key, creds, nkey, prefix or replicas", name)
		}
	}
	o = natsstore.Options{
		CA: n.CA, Cert: n.Cert, Key: n.Key, Credentials: n.Creds, NKeySeed: n.NKey,
		User: n.User, Prefix: n.Prefix, Replicas: n.Replicas,
	}
	for _, s := range []struct {
		key, variable string
		at            *string
	}{{"nats.password_env", n.PasswordEnv, &o.Password}, {"nats.token_env", n.TokenEnv, &o.Token}} {
		if s.variable == "" {
			continue
		}
		if *s.at = os.Getenv(s.variable); *s.at == "" {
			return "", o, errors.New(c.At(s.key, "the variable %s is not set", s.variable).Error())
		}
	}
	return "nats://" + strings.TrimSuffix(hosts, "/"), o, nil
}
