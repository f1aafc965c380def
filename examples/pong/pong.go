// Answers GET /pong/N with N bytes, at the port that is the first argument.
package main

import (
	"log"
	"net/http"
	"os"
	"path"
	"strconv"
)

var content = make([]byte, 1<<20)

func pong(answer http.ResponseWriter, request *http.Request) {
	left, err := strconv.Atoi(path.Base(request.URL.Path))
	if err != nil || left < 0 {
		http.Error(answer, "the path must end with a number of bytes", http.StatusBadRequest)
		return
	}
	answer.Header().Set("Content-Length", strconv.Itoa(left))
	for left > 0 {
		sent, err := answer.Write(content[:min(left, len(content))])
		if err != nil {
			return
		}
		left -= sent
	}
}

func main() {
	log.Fatal(http.ListenAndServe(":"+os.Args[1], http.HandlerFunc(pong)))
}
