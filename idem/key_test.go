package idem_test

import (
	"errors"
	"math"
	"math/big"
	"net/netip"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/idem"
)

func TestKeysHaveNamesOfTheirOwn(t *testing.T) {
	part := rapid.StringOfN(rapid.RuneFrom([]rune{'a', '|', '\\', '~', 'é'}), 1, 110, idem.MaxPart)
	rapid.Check(t, func(t *rapid.T) {
		a, b := idem.Key{Scope: part.Draw(t, "scope"), ID: part.Draw(t, "id")}, idem.Key{Scope: part.Draw(t, "scope"), ID: part.Draw(t, "id")}
		if rapid.Bool().Draw(t, "shift") { // the same text, cut at another place
			whole := a.Scope + "|" + a.ID
			at := rapid.SampledFrom(bars(whole)).Draw(t, "bar")
			b = idem.Key{Scope: whole[:at], ID: whole[at+1:]}
		}
		if (a == b) != (a.Name() == b.Name()) {
			t.Errorf("%q and %q have the names %q and %q", a, b, a.Name(), b.Name())
		}
		if name := a.Name(); len(name) > 200 || !utf8.ValidString(name) {
			t.Errorf("%q has the name %q of %d bytes", a, name, len(name))
		}
	})
}

func bars(text string) (at []int) {
	for i := range text {
		if text[i] == '|' && i > 0 && i < len(text)-1 {
			at = append(at, i)
		}
	}
	return at
}

func TestKeyIsChecked(t *testing.T) {
	long := strings.Repeat("x", idem.MaxPart)
	for _, key := range []idem.Key{{"", "a"}, {"a", ""}, {"a", long + "x"}, {long + "x", "a"}, {"a", "\xff"}, {"a\n", "b"}} {
		if err := key.Validate(); !errors.Is(err, pawl.ErrInvalid) {
			t.Errorf("%q: %v", key, err)
		}
	}
	if err := (idem.Key{Scope: long, ID: long}).Validate(); err != nil {
		t.Error(err)
	}
}

func TestKeyOf(t *testing.T) {
	type order struct {
		User  string
		Items map[string]int
	}
	key, err := idem.KeyOf("order", order{"u7", map[string]int{"a": 1, "b": 2}})
	if err != nil {
		t.Fatal(err)
	}
	if same, err := idem.KeyOf("order", order{"u7", map[string]int{"b": 2, "a": 1}}); same != key || err != nil {
		t.Errorf("equal content has the keys %q and %q, %v", key, same, err)
	}
	for _, other := range []order{{"u8", map[string]int{"a": 1, "b": 2}}, {"u7", map[string]int{"a": 1, "b": 3}}} {
		if k, err := idem.KeyOf("order", other); k == key || err != nil {
			t.Errorf("%+v has the same key %q, %v", other, k, err)
		}
	}
	for operation, content := range map[string]any{"order": math.Inf(1), "": 1} {
		if _, err := idem.KeyOf(operation, content); !errors.Is(err, pawl.ErrInvalid) {
			t.Errorf("%q, %v: %v", operation, content, err)
		}
	}
}

// TestKeyOfLosesNothing: content of which JSON loses a part is refused, because different content would have one key.
func TestKeyOfLosesNothing(t *testing.T) {
	type hidden struct{ amount int }
	type Hidden struct{ amount int }
	amount := big.NewInt(1)
	for _, content := range []any{
		"\xff", map[string]any{"a": []string{`\`, "b\xfe"}}, map[string]int{"\xc0": 1}, hidden{1}, &hidden{2},
		map[string]any{"price": hidden{1}}, []hidden{{1}}, [1]*hidden{{1}}, []any{&hidden{1}}, map[string][]hidden{"a": {{1}}},
		struct{ P hidden }{hidden{1}}, &struct{ P *hidden }{&hidden{1}}, struct{ Hidden }{Hidden{1}}, errors.New("a"),
		struct{ P big.Int }{*amount}, struct { // big.Int has its JSON by a pointer only
			A int `json:"-"`
		}{1},
	} {
		if key, err := idem.KeyOf("order", content); !errors.Is(err, pawl.ErrInvalid) {
			t.Errorf("%+v: %q, %v", content, key, err)
		}
	}
	type base struct{ N *int }
	type node struct {
		Next any `json:"n"`
	}
	type circle struct {
		node
		N int `json:"n"` // JSON writes this field, and not Next
	}
	round := &circle{N: 1}
	round.Next = round
	seen := make(map[idem.Key]any)
	for _, content := range []any{"\ufffd", `\ufffd`, `\\ufffd`, `\`, `a\`, "é", struct{}{}, nil, []int{}, time.Unix(1, 0).UTC(), struct {
		A int `json:",omitempty"`
		b int
	}{1, 2}, struct {
		P hidden `json:"-"`
		A string
	}{hidden{1}, "a"}, struct{ *base }{&base{}}, struct {
		*base
		A int
	}{A: 2}, &struct{ P big.Int }{*amount}, []any{amount, time.Unix(2, 0).UTC()},
		map[netip.Addr]*hidden{netip.IPv6Loopback(): nil}, round} {
		key, err := idem.KeyOf("order", content)
		if other, is := seen[key]; is || err != nil {
			t.Errorf("%#v: the key of %#v, %v", content, other, err)
		}
		seen[key] = content
	}
}

type (
	Order    struct{ ID string }
	Customer struct{ ID string }
	City     struct{ Name string }
	Country  struct{ Code string }
	Price    struct {
		cents    int
		Currency string
	}
)

func (c City) MarshalText() ([]byte, error)    { return []byte(c.Name), nil }
func (c Country) MarshalText() ([]byte, error) { return []byte(c.Code), nil }
func (p *Price) MarshalText() ([]byte, error)  { return []byte(p.Currency + strconv.Itoa(p.cents)), nil }

// TestKeyOfLosesNoFields: two fields with one name in JSON are refused, because JSON writes neither. So are fields that only methods write which JSON
// does not call.
func TestKeyOfLosesNoFields(t *testing.T) {
	type Day struct{ time.Time }
	type Hour struct{ time.Time }
	type list struct{ *list }
	for _, content := range []any{
		struct {
			Order
			Customer
			Cents int
		}{Order{"o"}, Customer{"c"}, 500},
		reflect.New(reflect.StructOf([]reflect.StructField{ // go vet finds this one where it is written
			{Name: "A", Type: reflect.TypeFor[int](), Tag: `json:"n"`}, {Name: "B", Type: reflect.TypeFor[int](), Tag: `json:"n"`},
		})).Interface(),
		struct {
			Order    `json:"\\"` // is no name
			Customer `json:""`
			Cents    int
		}{Order{"o"}, Customer{"c"}, 500},
		struct { // neither makes the JSON of the whole
			Day
			Hour
			Cents int
		}{Cents: 500},
		list{&list{}},
		struct { // has methods of its own by a pointer only
			big.Int
			Cents int
		}{*big.NewInt(1), 500},
		Price{500, "EUR"}, map[string]Price{"a": {500, "EUR"}}, struct {
			Price
			Order
		}{Price{500, "EUR"}, Order{"o"}},
	} {
		if key, err := idem.KeyOf("pay", content); !errors.Is(err, pawl.ErrInvalid) {
			t.Errorf("%+v: %q, %v", content, key, err)
		}
	}
}

// TestKeyOfKnowsTheNamesInJSON: names of fields in Go mean nothing.
func TestKeyOfKnowsTheNamesInJSON(t *testing.T) {
	type Hidden struct{ amount int }
	type order struct {
		ID string   `json:"order_id"`
		P  []Hidden `json:"goods"`
	}
	type customer struct {
		ID string `json:"customer_id"`
		P  int    `json:"postcode"`
	}
	type both struct {
		order
		*customer
	}
	type inCountry struct { // JSON calls neither method, and writes all fields
		City
		Country
	}
	seen := make(map[idem.Key]any)
	for _, content := range []any{both{order{ID: "a"}, &customer{ID: "b"}}, both{order{ID: "b"}, &customer{ID: "b"}}, both{order{ID: "a"}, &customer{ID: "c"}}, both{},
		struct {
			Order
			Customer `json:"customer"`
			ID       int `json:"cents"`
		}{Order{"a"}, Customer{"b"}, 500}, struct {
			Order
			Customer
			Chosen string `json:"ID"`
		}{Order{"a"}, Customer{"b"}, "c"}, inCountry{City{"a"}, Country{"b"}}, inCountry{City{"b"}, Country{"b"}}, inCountry{City{"a"}, Country{"a"}},
		&Price{500, "EUR"}, &Price{600, "EUR"}, []Price{{500, "EUR"}}} {
		key, err := idem.KeyOf("pay", content)
		if other, is := seen[key]; is || err != nil {
			t.Errorf("%#v: the key of %#v, %v", content, other, err)
		}
		seen[key] = content
	}
	if key, err := idem.KeyOf("pay", both{order{P: []Hidden{{1}}}, nil}); !errors.Is(err, pawl.ErrInvalid) {
		t.Errorf("a field beside an equal name in Go is not looked at: %q, %v", key, err)
	}
}

func TestFingerprints(t *testing.T) {
	one, two := idem.FingerprintOf([]byte("ab"), []byte("c")), idem.FingerprintOf([]byte("a"), []byte("bc"))
	if !one.Differs(two) || one.Differs(one) || one.Differs(idem.Fingerprint{}) || (idem.Fingerprint{}).Differs(one) {
		t.Error("fingerprints are compared wrongly")
	}
}

func TestTokens(t *testing.T) {
	if a, b := idem.NewToken(), idem.NewToken(); a == b || len(a) != 26 {
		t.Errorf("%q and %q", a, b)
	}
}
