package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// file makes the settings of a configuration file.
func (p *parser) file(path string) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read configuration file: %w", err)
	}
	settings, err := decodeFile(b)
	if err != nil {
		return fmt.Errorf("parse configuration file %s: %w", path, oneLine(err))
	}
	return p.fileSettings("", settings)
}

// decodeFile returns the top level of a YAML or JSON document. Numbers keep
// their digits, as json.Number.
func decodeFile(b []byte) (map[string]any, error) {
	j, err := yaml.YAMLToJSON(b)
	if err != nil {
		return nil, err
	}
	d := json.NewDecoder(bytes.NewReader(j))
	d.UseNumber()
	var doc any
	if err := d.Decode(&doc); err != nil {
		return nil, err
	}
	switch doc := doc.(type) {
	case map[string]any:
		return doc, nil
	case nil:
		return nil, nil
	}
	return nil, errors.New("the document is not a map of settings")
}

// oneLine returns err with its text in one line.
func oneLine(err error) error {
	return errors.New(strings.Join(strings.Fields(err.Error()), " "))
}

// fileSettings makes the settings of one level of the file, whose keys begin
// with prefix.
func (p *parser) fileSettings(prefix string, level map[string]any) error {
	for _, key := range slices.Sorted(maps.Keys(level)) {
		v := level[key]
		o := p.keyOption(prefix + key)
		if o == nil {
			if inner, ok := v.(map[string]any); ok && prefix == "" {
				if err := p.fileSettings(key+".", inner); err != nil {
					return err
				}
				continue
			}
			p.strange = append(p.strange, Warning{Setting: prefix + key, Text: "no setting has this key" + p.keyHint(prefix+key)})
			continue
		}
		s, err := fileText(v, o.value.kind())
		if err != nil {
			return fmt.Errorf("invalid value for %s: %w", prefix+key, err)
		}
		if s == "" {
			continue // as if it were not there
		}
		if err := p.set(o, prefix+key, s); err != nil {
			return err
		}
	}
	return nil
}

// keyOption returns the option with a key of the file, or nil.
func (p *parser) keyOption(key string) *option {
	for _, o := range p.options {
		if o.key == key || o.key == "" && o.name == key {
			return o
		}
	}
	return nil
}

// fileText returns a value of the file as a flag would have it.
func fileText(v any, k kind) (string, error) {
	switch v := v.(type) {
	case nil:
		return "", nil
	case string:
		return v, nil
	case bool:
		return fmt.Sprint(v), nil
	case json.Number:
		if k == kindDuration {
			return v.String() + "ns", nil
		}
		return v.String(), nil
	case []any:
		words := make([]string, len(v))
		for i, x := range v {
			w, ok := x.(string)
			if !ok {
				return "", fmt.Errorf("element %d of the list is not a string", i)
			}
			words[i] = w
		}
		return strings.Join(words, ","), nil
	}
	b, err := json.Marshal(v)
	if err != nil {
		return "", fmt.Errorf("encode value: %w", err)
	}
	return string(b), nil
}
