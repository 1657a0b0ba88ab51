package view

import "net/http"

// Server serves a collection part by part, for who has routes and errors of his
// own. It answers GET and HEAD; an error was not answered.
type Server struct{ h *handler }

// NewServer makes one. [HandlerOptions.Fail] is not used.
func NewServer(s Source, o HandlerOptions) *Server { return &Server{newHandler(s, o)} }

// Snap serves the document of a key.
func (s *Server) Snap(w http.ResponseWriter, r *http.Request, key string) error {
	return s.h.snap(w, r, key)
}

// List serves a page of documents.
func (s *Server) List(w http.ResponseWriter, r *http.Request) error { return s.h.list(w, r) }

// Watch serves changes until the context of the request ends.
func (s *Server) Watch(w http.ResponseWriter, r *http.Request) error { return s.h.watch(w, r) }
