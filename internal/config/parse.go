package config

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// The answers of Parse to a command line that asks for a text instead of a node.
var (
	// ErrHelp is returned when the help text is asked for.
	ErrHelp = errors.New("config: help requested")
	// ErrVersion is returned when the version is asked for.
	ErrVersion = errors.New("config: version requested")
)

// UsageError is returned for settings that no node can start with. Its text is
// one line that names the setting.
type UsageError struct {
	// Err is what is wrong.
	Err error
}

// Error returns what is wrong.
func (e *UsageError) Error() string { return e.Err.Error() }

// Unwrap returns what is wrong.
func (e *UsageError) Unwrap() error { return e.Err }

// Parse makes a Config from a command line without the program's name and an
// environment in the form of os.Environ. An error is ErrHelp, ErrVersion or a
// *UsageError.
func Parse(args, environ []string) (*Config, error) {
	p := newParser(newConfig())
	if err := p.run(args, environ); err != nil {
		if errors.Is(err, ErrHelp) || errors.Is(err, ErrVersion) {
			return nil, err
		}
		return nil, &UsageError{Err: err}
	}
	return p.config, nil
}

// envPrefixes lead the names of environment variables; the first wins.
var envPrefixes = []string{"LATCHKEY_", "ETCD_"}

func envName(prefix, option string) string {
	return prefix + strings.ToUpper(strings.ReplaceAll(option, "-", "_"))
}

// parser collects settings into a Config.
type parser struct {
	config  *Config
	options []*option
	byName  map[string]*option
	// made says under which name the options that were set were given.
	made map[string]string
	// strange lists the settings that nobody knows.
	strange []Warning
}

func newParser(c *Config) *parser {
	p := &parser{config: c, byName: map[string]*option{}, made: map[string]string{}}
	for _, g := range c.groups() {
		for _, o := range g.options {
			o.normal = o.value.String()
			p.options = append(p.options, &o)
			p.byName[o.name] = &o
		}
	}
	return p
}

func (p *parser) run(args, environ []string) error {
	env := environment(environ)
	if err := p.flags(args); err != nil {
		return err
	}
	switch c := p.config; {
	case c.showHelp:
		return ErrHelp
	case c.showVersion:
		return ErrVersion
	case c.configFile == "":
		for _, prefix := range envPrefixes {
			if c.configFile == "" {
				c.configFile = env[envName(prefix, "config-file")]
			}
		}
	}
	if file := p.config.configFile; file != "" {
		return p.runFile(file, env)
	}
	if err := p.environment(env); err != nil {
		return err
	}
	return p.finish()
}

// runFile starts again with nothing but the file.
func (p *parser) runFile(path string, env map[string]string) error {
	delete(p.made, "config-file")
	ignored := len(p.made) > 0
	for name := range env {
		if o := p.envOption(name); o != nil && o.name != "config-file" {
			ignored = true
		}
	}
	*p.config = *newConfig()
	clear(p.made)
	if err := p.file(path); err != nil {
		return err
	}
	if ignored {
		p.strange = append(p.strange, Warning{
			Setting: "--config-file",
			Text:    "flags and environment variables are ignored beside a configuration file",
		})
	}
	return p.finish()
}

// set makes a setting that was given under the name setting.
func (p *parser) set(o *option, setting, s string) error {
	if err := o.value.set(s); err != nil {
		return fmt.Errorf("invalid value %q for %s: %w", s, setting, err)
	}
	p.made[o.name] = setting
	return nil
}

// flags makes the settings of the command line.
func (p *parser) flags(args []string) error {
	if len(args) == 1 && slices.Contains([]string{"help", "version"}, args[0]) {
		args = []string{"--" + args[0]}
	}
	for len(args) > 0 {
		arg := args[0]
		args = args[1:]
		name, ok := strings.CutPrefix(arg, "-")
		if !ok || name == "" || arg == "--" {
			return fmt.Errorf("unexpected argument %q%s", arg, p.flagHint(arg))
		}
		name, s, given := strings.Cut(strings.TrimPrefix(name, "-"), "=")
		if name == "h" {
			name = "help"
		}
		o := p.byName[name]
		if o == nil || o.fileOnly {
			return fmt.Errorf("unknown flag %s%s", strings.SplitN(arg, "=", 2)[0], p.flagHint(name))
		}
		switch {
		case given:
		case o.value.kind() == kindSwitch:
			s = "true"
		case len(args) == 0:
			return fmt.Errorf("flag --%s needs a value", name)
		default:
			s, args = args[0], args[1:]
		}
		if err := p.set(o, "--"+name, s); err != nil {
			return err
		}
	}
	return nil
}

// environment returns the variables that begin with one of our prefixes and are
// not empty.
func environment(environ []string) map[string]string {
	env := make(map[string]string)
	for _, kv := range environ {
		name, s, ok := strings.Cut(kv, "=")
		if !ok || s == "" {
			continue
		}
		for _, prefix := range envPrefixes {
			if strings.HasPrefix(name, prefix) {
				env[name] = s
			}
		}
	}
	return env
}

// envOption returns the option that an environment variable sets, or nil.
func (p *parser) envOption(name string) *option {
	for _, prefix := range envPrefixes {
		rest, ok := strings.CutPrefix(name, prefix)
		if !ok {
			continue
		}
		o := p.byName[strings.ToLower(strings.ReplaceAll(rest, "_", "-"))]
		if o != nil && !o.fileOnly && !o.flagOnly && envName(prefix, o.name) == name {
			return o
		}
	}
	return nil
}

// environment makes the settings of env that no flag made.
func (p *parser) environment(env map[string]string) error {
	for _, prefix := range envPrefixes {
		for _, name := range slices.Sorted(maps.Keys(env)) {
			if !strings.HasPrefix(name, prefix) {
				continue
			}
			o := p.envOption(name)
			if o == nil {
				p.strange = append(p.strange, Warning{Setting: name, Text: "no setting has this name" + p.variableHint(prefix, name)})
				continue
			}
			if _, made := p.made[o.name]; made {
				continue
			}
			if err := p.set(o, name, env[name]); err != nil {
				return err
			}
		}
	}
	return nil
}

// demanding reports whether the option's value asks for something.
func (o *option) demanding() bool {
	text := o.value.String()
	if o.asks != nil {
		return o.asks(text)
	}
	return text != o.normal
}

// finish checks the whole and collects the warnings.
func (p *parser) finish() error {
	var warnings []Warning
	for _, o := range p.options {
		setting, made := p.made[o.name]
		switch {
		case !made || o.help != "" || !o.demanding():
		case o.absent != "":
			return fmt.Errorf("%s can't be done: %s", setting, o.absent)
		default:
			warnings = append(warnings, Warning{Setting: setting, Text: "has no effect: " + o.idle})
		}
	}
	if err := p.config.finish(p.made); err != nil {
		return err
	}
	p.config.Warnings = slices.Concat(warnings, p.config.Warnings, p.strange)
	return nil
}
