package dns

// BoundPackets makes the bound on questions over UDP one that a test can reach.
func (s *Server) BoundPackets(most int) { s.crowd.packetsMax.Store(int64(most)) }
