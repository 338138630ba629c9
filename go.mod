module github.com/pawl-go/pawl

go 1.25.0
