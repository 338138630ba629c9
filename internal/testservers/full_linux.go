package testservers

import (
	"golang.org/x/sys/unix"
)

// Full lets no file of a private server grow beyond some bytes, as a full disk does, until room is called. The size is that of the
// largest file of the server at least, because the kernel refuses all writes behind it. A test that calls Full ignores
// SIGXFSZ before its server starts, which inherits that. Else the kernel ends the server.
func (s *Server) Full(size uint64) (room func()) {
	s.t.Helper()
	s.limit(size)
	return func() { s.t.Helper(); s.limit(unix.RLIM_INFINITY) }
}

// limit bounds the files of the server and of its children.
func (s *Server) limit(size uint64) {
	s.t.Helper()
	pid := s.pid()
	for range 2 { // the second time for a child that began before its parent had the bound
		for _, each := range family(pid) {
			var limit unix.Rlimit
			err := unix.Prlimit(each, unix.RLIMIT_FSIZE, nil, &limit)
			if err == nil {
				limit.Cur = min(size, limit.Max)
				err = unix.Prlimit(each, unix.RLIMIT_FSIZE, &limit, nil)
			}
			if err != nil && each == pid { // a child may have ended
				s.t.Fatal(err)
			}
		}
	}
}
