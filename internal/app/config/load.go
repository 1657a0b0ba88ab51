package config

import (
	"fmt"
	"reflect"
	"slices"
)

// Source is where settings come from.
type Source struct {
	// File is a path; "" means no file.
	File string
	// Env looks up a variable; see [os.LookupEnv]. Nil means none.
	Env func(name string) (string, bool)
	// Flags are the values of the flags that were given, by key.
	Flags map[string]string
}

// Load gathers the settings. The error is [Problems], or that of
// reading the file.
func Load(from Source) (*Config, error) {
	c := defaults()
	c.places = make(map[string]string)
	r := &reader{c: c}
	if from.File != "" {
		if err := r.readFile(from.File); err != nil {
			return nil, err
		}
		c.File = from.File
	}
	for i := range settings {
		s := &settings[i]
		if from.Env != nil {
			if text, ok := from.Env(s.Env()); ok && text != "" {
				r.override(s, "variable "+s.Env(), text)
			}
		}
		if text, ok := from.Flags[s.Key]; ok {
			r.override(s, "flag --"+s.Flag(), text)
		}
	}
	r.agree()
	if len(r.problems) > 0 {
		return nil, r.problems
	}
	return c, nil
}

// override sets a value from elsewhere than the file.
func (r *reader) override(s *Setting, place, text string) {
	r.c.places[s.Key] = place
	if err := s.value(r.c).set(text); err != nil {
		r.problems = append(r.problems, Problem{place, err.Error()})
	}
}

// agree checks what settings have to do with each other.
func (r *reader) agree() {
	c := r.c
	bad := func(key, format string, args ...any) { r.problems = append(r.problems, c.At(key, format, args...)) }
	if len(r.problems) > 0 {
		return // they would be found again in another form
	}
	if (c.TLS.Cert == "") != (c.TLS.Key == "") {
		key := "tls.cert"
		if c.TLS.Cert == "" {
			key = "tls.key"
		}
		bad(key, "tls.cert and tls.key go together")
	}
	if c.TLS.ClientCA != "" && !c.TLS.On() {
		bad("tls.client_ca", "needs tls.cert and tls.key")
	}
	if (c.NATS.Cert == "") != (c.NATS.Key == "") {
		key := "nats.cert"
		if c.NATS.Cert == "" {
			key = "nats.key"
		}
		bad(key, "nats.cert and nats.key go together")
	}
	j := &c.Auth.JWT
	switch {
	case j.SecretEnv != "" && j.SecretFile != "":
		bad("auth.jwt.secret_file", "there is one secret: give secret_env or secret_file")
	case !j.On() && j.Issuer != "":
		bad("auth.jwt.issuer", "needs secret_env, secret_file or jwks_url")
	case !j.On() && j.Audience != "":
		bad("auth.jwt.audience", "needs secret_env, secret_file or jwks_url")
	}
	if !Loopback(c.Listen) && !c.Auth.On() && !c.Insecure {
		bad("listen", "%s can be reached from other machines, and nobody would need a token: configure auth, listen on a loopback address, or give --insecure if something else keeps strangers away", c.Listen)
	}
}

// Differences lists the settings of two configurations that differ and that a
// running hub cannot change.
func Differences(from, to *Config) (keys []string) {
	for i := range settings {
		if s := &settings[i]; !s.Reloads && s.Text(from) != s.Text(to) {
			keys = append(keys, s.Key)
		}
	}
	if from.Auth.On() != to.Auth.On() {
		keys = append(keys, fmt.Sprintf("auth (%s)", change(from.Auth.On())))
	}
	if from.TLS.On() != to.TLS.On() {
		keys = append(keys, fmt.Sprintf("tls (%s)", change(from.TLS.On())))
	}
	if !reflect.DeepEqual(placeless(from.Views), placeless(to.Views)) {
		keys = append(keys, "views")
	}
	if !reflect.DeepEqual(from.inflow(), to.inflow()) {
		keys = append(keys, "changefeeds or outboxes")
	}
	return keys
}

// placeless are views without where they stand.
func placeless(views []View) []View {
	list := slices.Clone(views)
	for i := range list {
		list[i].Place = ""
	}
	return list
}

func change(was bool) string {
	if was {
		return "from on to off"
	}
	return "from off to on"
}

// KeepFixed sets what a running hub cannot change to what it was.
func KeepFixed(c, was *Config) {
	for i := range settings {
		if s := &settings[i]; !s.Reloads {
			if err := s.value(c).set(s.Text(was)); err != nil {
				panic(err) // it was set before
			}
		}
	}
	if c.Auth.On() != was.Auth.On() {
		c.Auth = was.Auth
	}
	if c.TLS.On() != was.TLS.On() {
		c.TLS = was.TLS
	}
	c.Views, c.Changefeeds, c.Outboxes = was.Views, was.Changefeeds, was.Outboxes
}
