package auth

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/google/go-cmp/cmp"
)

// logged makes a login for t without a log.
func logged(t Tokens) Login {
	n := 0
	return func(_ context.Context, user, prefix string) (string, error) {
		n++
		token := fmt.Sprintf("%s.%d", prefix, n)
		t.Begin(token, user)
		return token, nil
	}
}

func issue(tb testing.TB, tokens Tokens, user string, login Login) string {
	tb.Helper()
	token, err := tokens.Issue(tb.Context(), user, 7, login)
	if err != nil {
		tb.Fatal(err)
	}
	return token
}

func TestSimpleTokensLastFromTheirLastUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tokens := NewSimple(10 * time.Second)
		token := issue(t, tokens, "u", logged(tokens))
		if !regexp.MustCompile(`^[a-zA-Z]{16}\.1$`).MatchString(token) {
			t.Errorf("token %q", token)
		}
		for range 3 {
			time.Sleep(10 * time.Second)
			if id, ok := tokens.Identify(token, 9); !ok || id != (Identity{User: "u", Revision: 9, Known: true}) {
				t.Fatalf("%+v, %v", id, ok)
			}
		}
		time.Sleep(10*time.Second + 1)
		if id, ok := tokens.Identify(token, 9); ok {
			t.Errorf("expired token gives %+v", id)
		}
	})
}

func TestSimpleTokensEnd(t *testing.T) {
	tokens := NewSimple(0)
	login := logged(tokens)
	a, b, c := issue(t, tokens, "u", login), issue(t, tokens, "u", login), issue(t, tokens, "v", login)
	known := func() (alive string) {
		for name, token := range map[string]string{"a": a, "b": b, "c": c} {
			if _, ok := tokens.Identify(token, 1); ok {
				alive += name
			}
		}
		return alive
	}
	if got := known(); len(got) != 3 {
		t.Errorf("of a, b, c only %q live", got)
	}
	tokens.End("u")
	if got := known(); got != "c" {
		t.Errorf("%q live, want c", got)
	}
	tokens.EndAll()
	if got := known(); got != "" {
		t.Errorf("%q live", got)
	}
	for _, bad := range []string{"", ".", "x", a + "0"} {
		if _, ok := tokens.Identify(bad, 1); ok {
			t.Errorf("%q is a token", bad)
		}
	}
}

// Tokens that nobody uses any more take no memory for ever.
func TestExpiredSimpleTokensAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tokens := NewSimple(time.Minute)
		login := logged(tokens)
		for range 1000 {
			issue(t, tokens, "u", login)
			time.Sleep(time.Second)
		}
		if n := len(tokens.sessions); n > 121 {
			t.Errorf("%d tokens are kept", n)
		}
	})
}

func TestPrefixesDiffer(t *testing.T) {
	seen := make(map[string]bool)
	letters := make(map[rune]int)
	const n = 2000
	for range n {
		p := drawPrefix()
		if seen[p] {
			t.Fatalf("%q was drawn twice", p)
		}
		seen[p] = true
		for _, r := range p {
			letters[r]++
		}
	}
	mean := n * tokenLength / len(tokenLetters)
	for _, r := range tokenLetters {
		if got := letters[r]; got < mean/2 || got > 2*mean {
			t.Errorf("%c was drawn %d times, %d expected", r, got, mean)
		}
	}
}

// keyFiles writes a pair of keys and returns the files' names.
func keyFiles(tb testing.TB, private, public any) (priv, pub string) {
	tb.Helper()
	dir := tb.TempDir()
	write := func(name, kind string, der []byte, err error) string {
		if err != nil {
			tb.Fatal(err)
		}
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			tb.Fatal(err)
		}
		return file
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if ec, ok := private.(*ecdsa.PrivateKey); ok {
		der, err = x509.MarshalECPrivateKey(ec)
	}
	priv = write("priv.pem", "PRIVATE KEY", der, err)
	der, err = x509.MarshalPKIXPublicKey(public)
	return priv, write("pub.pem", "PUBLIC KEY", der, err)
}

func signedKeys(tb testing.TB) map[string][2]string {
	tb.Helper()
	r, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		tb.Fatal(err)
	}
	e, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	edPublic, ed, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	files := make(map[string][2]string)
	for method, pair := range map[string][2]any{
		"RS256": {r, &r.PublicKey}, "PS256": {r, &r.PublicKey}, "ES256": {e, &e.PublicKey}, "EdDSA": {ed, edPublic},
	} {
		priv, pub := keyFiles(tb, pair[0], pair[1])
		files[method] = [2]string{priv, pub}
	}
	return files
}

func open(tb testing.TB, description string) Tokens {
	tb.Helper()
	tokens, ignored, err := NewTokens(description, 0)
	if err != nil || len(ignored) > 0 {
		tb.Fatalf("%s: %v, ignored %v", description, err, ignored)
	}
	return tokens
}

func TestSignedTokens(t *testing.T) {
	all := signedKeys(t)
	for method, files := range all {
		t.Run(method, func(t *testing.T) {
			base := "jwt,sign-method=" + method
			signer := open(t, base+",priv-key="+files[0]+",pub-key="+files[1])
			token := issue(t, signer, "u", nil)
			want := Identity{User: "u", Revision: 7, Known: true, Signed: true}
			for _, options := range []string{",priv-key=" + files[0], ",pub-key=" + files[1]} {
				if id, ok := open(t, base+options).Identify(token, 99); !ok || id != want {
					t.Errorf("%s: %+v, %v", options, id, ok)
				}
			}
			if _, err := open(t, base+",pub-key="+files[1]).Issue(t.Context(), "u", 7, nil); !errors.Is(err, ErrVerifyOnly) {
				t.Errorf("signed with a public key: %v", err)
			}
			if _, ok := signer.Identify(token[:len(token)-3], 1); ok {
				t.Error("a torn token passes")
			}
			// What ends simple tokens does not end these.
			signer.End("u")
			signer.EndAll()
			if _, ok := signer.Identify(token, 1); !ok {
				t.Error("a signed token was ended")
			}
			for other, files := range all {
				if other == method || strings.HasSuffix(other, "S256") && strings.HasSuffix(method, "S256") {
					continue
				}
				if _, ok := open(t, "jwt,sign-method="+other+",pub-key="+files[1]).Identify(token, 1); ok {
					t.Errorf("a token of %s passes where %s is wanted", method, other)
				}
			}
		})
	}
	_, _, err := NewTokens("jwt,sign-method=RS256,priv-key="+all["RS256"][0]+",pub-key="+all["PS256"][1], 0)
	if err != nil {
		t.Errorf("the same key in another file: %v", err)
	}
}

// A token that says that it is signed by another method must not make the public
// key a secret.
func TestSignedTokensKeepTheirMethod(t *testing.T) {
	files := signedKeys(t)["RS256"]
	public, err := os.ReadFile(files[1])
	if err != nil {
		t.Fatal(err)
	}
	tokens := open(t, "jwt,sign-method=RS256,pub-key="+files[1])
	claims := jwt.MapClaims{"username": Root, "revision": 1, "exp": time.Now().Add(time.Hour).Unix()}
	forged, err := jwt.NewWithClaims(jwt.SigningMethodHS256, claims).SignedString(public)
	if err != nil {
		t.Fatal(err)
	}
	unsigned, err := jwt.NewWithClaims(jwt.SigningMethodNone, claims).SignedString(jwt.UnsafeAllowNoneSignatureType)
	if err != nil {
		t.Fatal(err)
	}
	for _, token := range []string{forged, unsigned} {
		if id, ok := tokens.Identify(token, 1); ok {
			t.Errorf("forged token gives %+v", id)
		}
	}
}

func TestSignedTokensSayWhatIsNeeded(t *testing.T) {
	key := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(key, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	tokens := open(t, "jwt,sign-method=HS256,ttl=1h,priv-key="+key)
	hour := time.Now().Add(time.Hour).Unix()
	for name, tc := range map[string]struct {
		claims jwt.MapClaims
		ok     bool
	}{
		"whole":                   {jwt.MapClaims{"username": "u", "revision": 3, "exp": hour}, true},
		"for ever":                {jwt.MapClaims{"username": "u", "revision": 3}, true},
		"without a name":          {jwt.MapClaims{"revision": 3, "exp": hour}, false},
		"without a revision":      {jwt.MapClaims{"username": "u", "exp": hour}, false},
		"with a revision as text": {jwt.MapClaims{"username": "u", "revision": "3", "exp": hour}, false},
		"expired":                 {jwt.MapClaims{"username": "u", "revision": 3, "exp": time.Now().Add(-time.Second).Unix()}, false},
	} {
		token, err := jwt.NewWithClaims(jwt.SigningMethodHS256, tc.claims).SignedString([]byte("secret"))
		if err != nil {
			t.Fatal(err)
		}
		if id, ok := tokens.Identify(token, 1); ok != tc.ok {
			t.Errorf("%s: %+v, %v", name, id, ok)
		}
	}
	parsed, _, err := jwt.NewParser().ParseUnverified(issue(t, tokens, "u", nil), jwt.MapClaims{})
	if err != nil {
		t.Fatal(err)
	}
	end, err := parsed.Claims.GetExpirationTime()
	if left := time.Until(end.Time); err != nil || left > time.Hour || left < 50*time.Minute {
		t.Errorf("the token lasts %v, %v", left, err)
	}
}

func TestDescriptions(t *testing.T) {
	files := signedKeys(t)
	rs, ec := files["RS256"], files["ES256"]
	missing := filepath.Join(t.TempDir(), "missing")
	for _, bad := range []string{
		"other", "simple,x", "simple,a=b=c", "jwt,ttl=1m,ttl=2m", "jwt", "jwt,sign-method=RS1",
		"jwt,sign-method=none", "jwt,sign-method=RS256", "jwt,sign-method=ES256", "jwt,sign-method=EdDSA", "jwt,sign-method=HS256",
		"jwt,sign-method=RS256,ttl=x,priv-key=" + rs[0], "jwt,sign-method=RS256,priv-key=" + missing,
		"jwt,sign-method=RS256,pub-key=" + missing, "jwt,sign-method=RS256,priv-key=" + ec[0], "jwt,sign-method=RS256,pub-key=" + rs[0],
		"jwt,sign-method=EdDSA,priv-key=" + rs[0], "jwt,sign-method=EdDSA,pub-key=" + rs[1],
		"jwt,sign-method=RS256,priv-key=" + rs[0] + ",pub-key=" + signedKeys(t)["RS256"][1],
	} {
		if _, _, err := NewTokens(bad, 0); !errors.Is(err, ErrOptions) {
			t.Errorf("%q: %v", bad, err)
		}
	}
	_, ignored, err := NewTokens("jwt,sign-method=RS256,z=1,a=2,priv-key="+rs[0], 0)
	if diff := cmp.Diff([]string{"a", "z"}, ignored); err != nil || diff != "" {
		t.Errorf("%v, ignored (-want +got):\n%s", err, diff)
	}
	none := open(t, "")
	if _, err := none.Issue(t.Context(), "u", 1, logged(none)); !errors.Is(err, ErrFailed) {
		t.Errorf("a token where there are none: %v", err)
	}
	if _, ok := none.Identify("x.1", 1); ok {
		t.Error("a token is known where there are none")
	}
	if _, ok := open(t, "simple,anything=goes").(*Simple); !ok {
		t.Error("simple tokens are of another kind")
	}
}
