package main

import (
	"strings"
	"testing"
)

func TestReport(t *testing.T) {
	const (
		pass = `{"Action":"start","Package":"p"}
{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Test":"TestA","Output":"=== RUN   TestA\n"}
{"Action":"output","Package":"p","Test":"TestA","Output":"noise\n"}
{"Action":"pass","Package":"p","Test":"TestA","Elapsed":0}
{"Action":"output","Package":"p","Output":"PASS\n"}
{"Action":"output","Package":"p","Output":"ok  \tp\t0.004s\n"}
{"Action":"pass","Package":"p","Elapsed":0.004}
`
		none = `{"Action":"start","Package":"q"}
{"Action":"output","Package":"q","Output":"?   \tq\t[no test files]\n"}
{"Action":"skip","Package":"q","Elapsed":0}
`
		skip = `{"Action":"output","Package":"p","Test":"TestB","Output":"=== RUN   TestB\n"}
{"Action":"output","Package":"p","Test":"TestB","Output":"    b_test.go:7: not today\n"}
{"Action":"output","Package":"p","Test":"TestB","Output":"--- SKIP: TestB (0.00s)\n"}
{"Action":"skip","Package":"p","Test":"TestB","Elapsed":0}
`
		fail = `{"Action":"output","Package":"r","Test":"TestC","Output":"--- FAIL: TestC (0.00s)\n"}
{"Action":"fail","Package":"r","Test":"TestC","Elapsed":0}
{"Action":"output","Package":"r","Output":"FAIL\tr\t0.1s\n"}
{"Action":"fail","Package":"r","Elapsed":0.1}
`
		broken = `{"ImportPath":"s","Action":"build-output","Output":"s.go:1: syntax error\n"}
{"ImportPath":"s","Action":"build-fail"}
{"Action":"output","Package":"s","Output":"FAIL\ts [build failed]\n"}
{"Action":"fail","Package":"s","Elapsed":0,"FailedBuild":"s"}
`
	)
	for name, tc := range map[string]struct {
		in, want string
		ok       bool
	}{
		"pass":       {pass, "ok  \tp\t0.004s\n", true},
		"no tests":   {none + pass, "?   \tq\t[no test files]\nok  \tp\t0.004s\n", true},
		"nothing":    {none, "?   \tq\t[no test files]\nFAIL\n", false},
		"empty":      {"", "FAIL\n", false},
		"skip":       {skip + pass, "ok  \tp\t0.004s\nskipped: p TestB: b_test.go:7: not today\nFAIL\n", false},
		"fail":       {pass + fail, "ok  \tp\t0.004s\n--- FAIL: TestC (0.00s)\nFAIL\tr\t0.1s\nFAIL\n", false},
		"broken":     {pass + broken, "ok  \tp\t0.004s\ns.go:1: syntax error\nFAIL\ts [build failed]\nFAIL\n", false},
		"other text": {"go: warning\n" + pass, "go: warning\nok  \tp\t0.004s\n", true},
		"cut off":    {pass + `{"Action":"output","Package":"r","Test":"TestC","Output":"half\n"}`, "ok  \tp\t0.004s\nr TestC did not end\nhalf\nFAIL\n", false},
	} {
		t.Run(name, func(t *testing.T) {
			var b strings.Builder
			ok, err := report(strings.NewReader(tc.in), &b)
			if err != nil || ok != tc.ok || b.String() != tc.want {
				t.Errorf("report = %t, %v, want %t\ngot:\n%s\nwant:\n%s", ok, err, tc.ok, b.String(), tc.want)
			}
		})
	}
}
