package pawl_test

import (
	"go/ast"
	"go/doc"
	"path"
	"strings"
	"testing"
)

// TestExports: every exported symbol is documented, and the root has no more symbols than a user
// can learn.
func TestExports(t *testing.T) {
	packages := make(map[string][]*goFile)
	for _, f := range goFiles(t) {
		if !f.test && f.ast.Name.Name != "main" {
			packages[f.pkg] = append(packages[f.pkg], f)
		}
	}
	for pkg, files := range packages {
		var parsed []*ast.File
		for _, f := range files {
			parsed = append(parsed, f.ast)
		}
		p, err := doc.NewFromFiles(files[0].fset, parsed, path.Join(module, pkg), doc.PreserveAST)
		if err != nil {
			t.Fatal(err)
		}
		if p.Doc == "" {
			t.Errorf("package %s is not documented", pkg)
		}
		exports := &exports{t: t, pkg: pkg}
		exports.packageLevel(p)
		if pkg == "." && exports.n > rootExports {
			t.Errorf("the root exports %d symbols with methods, more than %d", exports.n, rootExports)
		}
		if pkg == "." {
			t.Logf("the root exports %d symbols with methods", exports.n)
		}
	}
}

// rootExports is how many symbols the root may have: the names of the package, the methods of all
// types, and those of interfaces.
const rootExports = 165

// exports counts the exported symbols of a package, methods too, and reports any without
// documentation.
type exports struct {
	t   *testing.T
	pkg string
	n   int
}

func (e *exports) packageLevel(p *doc.Package) {
	e.values(p.Consts)
	e.values(p.Vars)
	e.funcs("", p.Funcs)
	for _, typ := range p.Types {
		if !ast.IsExported(typ.Name) {
			continue
		}
		e.symbol(typ.Name, typ.Doc)
		e.values(typ.Consts)
		e.values(typ.Vars)
		e.funcs("", typ.Funcs)
		e.funcs(typ.Name+".", typ.Methods)
		e.methods(typ)
	}
}

func (e *exports) symbol(name, text string) {
	e.n++
	if strings.TrimSpace(text) == "" {
		e.t.Errorf("%s: %s is not documented", e.pkg, name)
	}
}

func (e *exports) funcs(prefix string, funcs []*doc.Func) {
	for _, f := range funcs {
		if ast.IsExported(f.Name) {
			e.symbol(prefix+f.Name, f.Doc)
		}
	}
}

// values wants a comment for each constant or variable, or for its group.
func (e *exports) values(values []*doc.Value) {
	for _, v := range values {
		for _, s := range v.Decl.Specs {
			spec := s.(*ast.ValueSpec)
			for _, name := range spec.Names {
				if ast.IsExported(name.Name) {
					e.symbol(name.Name, v.Doc+spec.Doc.Text()+spec.Comment.Text())
				}
			}
		}
	}
}

// methods does so for the methods of an interface.
func (e *exports) methods(typ *doc.Type) {
	iface, ok := typ.Decl.Specs[0].(*ast.TypeSpec).Type.(*ast.InterfaceType)
	if !ok {
		return
	}
	for _, m := range iface.Methods.List {
		for _, name := range m.Names {
			if ast.IsExported(name.Name) {
				e.symbol(typ.Name+"."+name.Name, m.Doc.Text())
			}
		}
	}
}
