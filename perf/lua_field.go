// The field's 512 bytes by Go's own server: what perf/lua.py sets beside the same row in Lua. Each request makes its text, as the program in
// Lua does; return512 has it ready.
package main

import (
	"io"
	"log"
	"net/http"
	"os"
	"strconv"
	"strings"
)

func main() {
	const size = 512
	ready := strings.Repeat("x", size)
	answer := func(text func() string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/plain")
			w.Header().Set("Content-Length", strconv.Itoa(size))
			io.WriteString(w, text())
		}
	}
	made := answer(func() string { return strings.Repeat("x", size) })
	constant := answer(func() string { return ready })
	http.HandleFunc("/512", made)
	http.HandleFunc("/512short", made)
	http.HandleFunc("/return512", constant)
	http.HandleFunc("/return512short", constant)
	log.Fatal(http.ListenAndServe("127.0.0.1:"+os.Args[1], nil))
}
