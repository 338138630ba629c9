package open_test

import (
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/etcdengine"
	"github.com/pawl-go/pawl/engine/memengine"
	"github.com/pawl-go/pawl/engine/mysqlengine"
	"github.com/pawl-go/pawl/engine/natsengine"
	"github.com/pawl-go/pawl/engine/pgengine"
	"github.com/pawl-go/pawl/engine/redisengine"
	"github.com/pawl-go/pawl/engine/redlockengine"
	"github.com/pawl-go/pawl/engine/sqliteengine"
	"github.com/pawl-go/pawl/engine/zkengine"
)

// TestMethods: an engine has the methods of the seam and a few of its own, and promotes no method
// of an internal type.
func TestMethods(t *testing.T) {
	var seam []string
	for _, part := range []reflect.Type{reflect.TypeFor[engine.Engine](), reflect.TypeFor[engine.Values](), reflect.TypeFor[engine.Resizer]()} {
		for m := range part.NumMethod() {
			seam = append(seam, part.Method(m).Name)
		}
	}
	all := map[string][]reflect.Type{
		"etcdengine":    {reflect.TypeFor[*etcdengine.Engine]()},
		"memengine":     {reflect.TypeFor[*memengine.Engine]()},
		"mysqlengine":   {reflect.TypeFor[*mysqlengine.Engine](), reflect.TypeFor[mysqlengine.Row]()},
		"natsengine":    {reflect.TypeFor[*natsengine.Engine]()},
		"pgengine":      {reflect.TypeFor[*pgengine.Engine](), reflect.TypeFor[pgengine.Row]()},
		"redisengine":   {reflect.TypeFor[*redisengine.Engine]()},
		"redlockengine": {reflect.TypeFor[*redlockengine.Engine]()},
		"sqliteengine":  {reflect.TypeFor[*sqliteengine.Engine]()},
		"zkengine":      {reflect.TypeFor[*zkengine.Engine]()},
	}
	own := map[string][]string{"memengine": {"Expire"}, "natsengine": {"Init"}, "redisengine": {"Init"}}
	folders, err := os.ReadDir("..")
	if err != nil {
		t.Fatal(err)
	}
	for _, folder := range folders {
		if name := folder.Name(); strings.HasSuffix(name, "engine") && all[name] == nil {
			t.Errorf("%s is not in this test", name)
		}
	}
	for name, types := range all {
		for _, is := range types {
			for m := range is.NumMethod() {
				if method := is.Method(m).Name; !slices.Contains(seam, method) && !slices.Contains(own[name], method) {
					t.Errorf("%v has a method %s, which is of no part of the seam", is, method)
				}
			}
			if is.Kind() == reflect.Pointer {
				is = is.Elem()
			}
			for f := range is.NumField() {
				if field := is.Field(f); field.IsExported() {
					t.Errorf("%v has a field %s that users see", is, field.Name)
				}
			}
		}
	}
}
