package testservers

import "strconv"

// Full lets no file of a private server grow beyond some bytes, as a full disk does, until room is called. The size is that of the
// largest file of the server at least, because the kernel refuses all writes behind it. A test that calls Full ignores
// SIGXFSZ before its server starts, which inherits that. Else the kernel ends the server.
func (s *Server) Full(size int) (room func()) {
	s.t.Helper()
	s.limit(strconv.Itoa(size))
	return func() { s.t.Helper(); s.limit("unlimited") }
}

// limit bounds the files of the server and of its children. The user of the server does that, because root alone may not everywhere.
func (s *Server) limit(size string) {
	s.t.Helper()
	pid := s.pid()
	for range 2 { // the second time for a child that began before its parent had the bound
		for _, each := range family(pid) {
			err := run(s.own().kind.command("prlimit", "--pid", strconv.Itoa(each), "--fsize="+size+":"))
			if err != nil && each == pid { // a child may have ended
				s.t.Fatal(err)
			}
		}
	}
}
