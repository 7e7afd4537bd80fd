package api

import (
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// document is what the test reads of an OpenAPI file.
type document struct {
	OpenAPI string `json:"openapi"`
	// Paths are by path and method; parameters of a path are its operations' too.
	Paths      map[string]pathItem `json:"paths"`
	Components struct {
		Schemas   map[string]*schema `json:"schemas"`
		Responses map[string]struct {
			Content content `json:"content"`
		} `json:"responses"`
	} `json:"components"`
}

type pathItem struct {
	Get  *operation `json:"get"`
	Post *operation `json:"post"`
}

type operation struct {
	Parameters []struct {
		Name string `json:"name"`
		In   string `json:"in"`
	} `json:"parameters"`
	RequestBody *struct {
		Content content `json:"content"`
	} `json:"requestBody"`
	Responses map[string]struct {
		Ref     string  `json:"$ref"`
		Content content `json:"content"`
	} `json:"responses"`
}

// content is the forms of a body, by media type.
type content map[string]struct {
	Schema *schema `json:"schema"`
}

type schema struct {
	Ref        string             `json:"$ref"`
	Type       string             `json:"type"`
	Format     string             `json:"format"`
	Enum       []string           `json:"enum"`
	Items      *schema            `json:"items"`
	OneOf      []*schema          `json:"oneOf"`
	Properties map[string]*schema `json:"properties"`
	// Additional is false where other properties are refused.
	Additional *bool `json:"additionalProperties"`
}

// The OpenAPI file has what the handlers serve, no more and no less: paths, methods, parameters, and
// the fields of bodies with their types.
func TestOpenAPI(t *testing.T) {
	text, err := os.ReadFile("openapi/locks.yaml")
	check(t, err)
	var d document
	check(t, yaml.Unmarshal(text, &d))
	if d.OpenAPI != "3.1.0" {
		t.Errorf("version %q", d.OpenAPI)
	}
	used := map[string]bool{}
	served := 0
	for _, e := range newLocksAPI(nil).endpoints {
		item := d.Paths[e.path]
		op := map[string]*operation{"GET": item.Get, "POST": item.Post}[e.method]
		if op == nil {
			t.Errorf("%s %s is not there", e.method, e.path)
			continue
		}
		served++
		var query []string
		for _, p := range op.Parameters {
			if p.In == "query" {
				query = append(query, p.Name)
			}
		}
		if !slices.Equal(slices.Sorted(slices.Values(query)), slices.Sorted(slices.Values(e.query))) {
			t.Errorf("%s: parameters %q, the handler knows %q", e.path, query, e.query)
		}
		match := func(what string, c content, value any) {
			t.Helper()
			if value == nil || len(c) != 1 {
				t.Errorf("%s: %s is of %d forms", e.path, what, len(c))
				return
			}
			for _, form := range c {
				d.match(t, e.path+" "+what, form.Schema, reflect.TypeOf(value), used)
			}
		}
		if op.RequestBody != nil || e.request != nil {
			match("request", op.RequestBody.Content, e.request)
			if s := d.resolve(op.RequestBody.Content["application/json"].Schema, used); s.Additional == nil || *s.Additional {
				t.Errorf("%s: the request lets in other fields", e.path)
			}
		}
		match("200", op.Responses["200"].Content, e.answer)
		for _, conflict := range op.Responses["409"].Content {
			if forms := conflict.Schema.OneOf; len(forms) != 2 || forms[1].Ref != "#/components/schemas/Error" {
				t.Errorf("%s: 409 is of %d forms", e.path, len(forms))
				continue
			}
			d.match(t, e.path+" 409", conflict.Schema.OneOf[0], reflect.TypeFor[notAcquiredJSON](), used)
		}
		if op.Responses["default"].Ref != "#/components/responses/Failed" {
			t.Errorf("%s: errors are %v", e.path, op.Responses["default"])
		}
	}
	d.match(t, "errors", d.Components.Responses["Failed"].Content["application/json"].Schema, reflect.TypeFor[errorJSON](), used)
	operations := 0
	for _, item := range d.Paths {
		for _, op := range []*operation{item.Get, item.Post} {
			if op != nil {
				operations++
			}
		}
	}
	if operations != served {
		t.Errorf("%d operations, %d are served", operations, served)
	}
	for name := range d.Components.Schemas {
		if !used[name] {
			t.Errorf("nothing uses the schema %s", name)
		}
	}
	var events []string
	for _, name := range eventNames {
		events = append(events, string(name))
	}
	if got := d.Components.Schemas["Event"].Properties["event"].Enum; !slices.Equal(slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(events))) {
		t.Errorf("events %q, there are %q", got, events)
	}
}

// resolve returns what a schema refers to.
func (d *document) resolve(s *schema, used map[string]bool) *schema {
	if s == nil {
		return &schema{}
	}
	name, ok := strings.CutPrefix(s.Ref, "#/components/schemas/")
	if !ok {
		return s
	}
	used[name] = true
	return d.resolve(d.Components.Schemas[name], used)
}

// match compares a schema with the type of what is read or written.
func (d *document) match(t *testing.T, where string, s *schema, of reflect.Type, used map[string]bool) {
	t.Helper()
	s = d.resolve(s, used)
	for of.Kind() == reflect.Pointer {
		of = of.Elem()
	}
	want := map[reflect.Kind][2]string{
		reflect.String: {"string", ""}, reflect.Bool: {"boolean", ""}, reflect.Int64: {"integer", "int64"},
		reflect.Int32: {"integer", "int32"}, reflect.Slice: {"array", ""}, reflect.Struct: {"object", ""},
	}[of.Kind()]
	if got := [2]string{s.Type, s.Format}; got != want {
		t.Errorf("%s: %q, the handler has %q", where, got, want)
		return
	}
	switch of.Kind() {
	case reflect.Slice:
		d.match(t, where+"[]", s.Items, of.Elem(), used)
	case reflect.Struct:
		fields := map[string]reflect.Type{}
		for _, f := range reflect.VisibleFields(of) {
			if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" {
				fields[name] = f.Type
			}
		}
		for name, p := range s.Properties {
			if fields[name] == nil {
				t.Errorf("%s: the handler has no %s", where, name)
				continue
			}
			d.match(t, where+"."+name, p, fields[name], used)
		}
		for name := range fields {
			if s.Properties[name] == nil {
				t.Errorf("%s: %s is not there", where, name)
			}
		}
	default:
	}
}
