// Receive RiskRelay's deliveries: verify them, open one ticket for each, say what is wrong with the others.
//
//	WEBHOOK_SECRET=... PORT=9000 go run receiver.go
//	go run receiver.go --vectors vectors.json      # try it on the test vectors
//
// Needs nothing but Go 1.19 or newer. Run it, or copy from it.
package main

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"
)

const (
	tolerance     = 300           // seconds that the sender's clock may be off
	remembered    = 2 * tolerance // a nonce can come again for as long as its timestamp is accepted
	maxRemembered = 100_000       // bounds the memory: beyond it the oldest are forgotten
	maxBodyBytes  = 4 << 20
	idleTimeout   = 30 * time.Second
)

var (
	timestampForm = regexp.MustCompile(`^[0-9]{1,15}$`)
	nonceForm     = regexp.MustCompile(`^[0-9A-Fa-f]{32}$`)
)

// verify tells whether a request is genuine, fresh, and here for the first time. There are several secrets while they are
// rotated; header gives a header's value; body is the raw bytes of io.ReadAll, before anything parses them; now is in unix
// seconds. isReplay remembers a nonce and tells whether it was known; it is asked last, so that forgers cannot fill the
// memory.
func verify(secrets []string, header func(string) string, body []byte, now int64, isReplay func(string) bool) bool {
	timestamp, nonce := header("X-Service-Timestamp"), header("X-Service-Nonce")
	// Without these forms signed bytes could move between timestamp, nonce and body.
	if !timestampForm.MatchString(timestamp) || !nonceForm.MatchString(nonce) {
		return false
	}
	at, err := strconv.ParseInt(timestamp, 10, 64)
	if err != nil || at < now-tolerance || at > now+tolerance {
		return false
	}
	given := []byte(header("X-Service-Signature"))
	isSigned := false
	for _, secret := range secrets {
		mac := hmac.New(sha256.New, []byte(secret))
		fmt.Fprintf(mac, "%s.%s.", timestamp, nonce)
		mac.Write(body)
		expected := "sha256=" + hex.EncodeToString(mac.Sum(nil))
		isSigned = hmac.Equal([]byte(expected), given) || isSigned
	}
	return isSigned && !isReplay(nonce)
}

type event struct {
	Type   string `json:"type"`
	Ticket *struct {
		Title *string `json:"title"`
	} `json:"ticket"`
}

type answer struct {
	status      int
	body        map[string]string
	waitSeconds int64 // 0 where there is no wait
}

// receiver judges requests. It remembers in memory what a real one keeps in its database.
type receiver struct {
	secrets       []string
	ratePerMinute int // 0 is no limit
	mutex         sync.Mutex
	nonces        memory[int64]  // and when each was seen
	letThrough    []int64        // when, within the last minute
	tickets       memory[string] // by Idempotency-Key: in a database, a unique column beside the ticket
	lastNumber    int
}

// receive judges one request; 2xx says that the ticket is ours from now on.
func (r *receiver) receive(header func(string) string, body []byte, now int64) answer {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	if !verify(r.secrets, header, body, now, func(nonce string) bool { return r.isReplay(nonce, now) }) {
		return refusal(http.StatusUnauthorized, "WEBHOOK_SIGNATURE_INVALID")
	}
	if wait := r.wait(now); wait > 0 {
		limited := refusal(http.StatusTooManyRequests, "WEBHOOK_RATE_LIMITED")
		limited.waitSeconds = wait
		return limited
	}
	var told event
	err := json.Unmarshal(body, &told)
	isReadable := err == nil && utf8.Valid(body)
	if isReadable && told.Type == "target.ping" {
		return answer{status: http.StatusOK, body: map[string]string{}} // a test: no ticket
	}
	key := header("Idempotency-Key")
	if !isReadable || told.Type != "ticket.export" || told.Ticket == nil || told.Ticket.Title == nil || key == "" {
		return refusal(http.StatusUnprocessableEntity, "WEBHOOK_VALIDATION_FAILED")
	}
	id := r.ticketFor(key)
	return answer{status: http.StatusOK, body: map[string]string{"id": id, "url": "https://tracker.example/" + id}}
}

func refusal(status int, code string) answer {
	return answer{status: status, body: map[string]string{"code": code}}
}

func (r *receiver) isReplay(nonce string, now int64) bool {
	for len(r.nonces.order) > 0 && r.nonces.values[r.nonces.order[0]] < now-remembered {
		r.nonces.forgetOldest()
	}
	if _, isKnown := r.nonces.values[nonce]; isKnown {
		return true
	}
	r.nonces.remember(nonce, now)
	return false
}

func (r *receiver) wait(now int64) int64 {
	for len(r.letThrough) > 0 && r.letThrough[0] <= now-60 {
		r.letThrough = r.letThrough[1:]
	}
	if r.ratePerMinute == 0 {
		return 0
	}
	if len(r.letThrough) >= r.ratePerMinute {
		return r.letThrough[0] + 60 - now
	}
	r.letThrough = append(r.letThrough, now)
	return 0
}

// ticketFor opens a ticket, once a key: a delivery whose answer was lost comes again.
func (r *receiver) ticketFor(key string) string {
	if _, isKnown := r.tickets.values[key]; !isKnown {
		r.lastNumber++
		r.tickets.remember(key, fmt.Sprintf("T-%d", r.lastNumber)) // your tracker takes the ticket here
	}
	return r.tickets.values[key]
}

// memory is a map that knows what came first.
type memory[V any] struct {
	values map[string]V
	order  []string
}

func (m *memory[V]) remember(name string, value V) {
	if m.values == nil {
		m.values = map[string]V{}
	}
	m.values[name] = value
	m.order = append(m.order, name)
	if len(m.order) > maxRemembered {
		m.forgetOldest()
	}
}

func (m *memory[V]) forgetOldest() {
	delete(m.values, m.order[0])
	m.order = m.order[1:]
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, request.Body, maxBodyBytes))
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		write(w, refusal(http.StatusRequestEntityTooLarge, "WEBHOOK_VALIDATION_FAILED"))
	case err != nil: // no whole body came: without an answer of ours, Go's would be a 200
		w.WriteHeader(http.StatusRequestTimeout)
	case request.Method != http.MethodPost:
		w.Header().Set("Allow", http.MethodPost)
		write(w, answer{status: http.StatusMethodNotAllowed, body: map[string]string{}})
	default:
		// A header that is there twice has no form that verify accepts.
		header := func(name string) string { return strings.Join(request.Header.Values(name), ", ") }
		write(w, r.receive(header, body, time.Now().Unix()))
	}
}

func write(w http.ResponseWriter, told answer) {
	w.Header().Set("Content-Type", "application/json")
	if told.waitSeconds > 0 {
		w.Header().Set("Retry-After", strconv.FormatInt(told.waitSeconds, 10))
	}
	w.WriteHeader(told.status)
	json.NewEncoder(w).Encode(told.body)
}

type vector struct {
	Name          string      `json:"name"`
	Secrets       []string    `json:"secrets"`
	Now           int64       `json:"now"`
	Seen          []string    `json:"seen"`
	RatePerMinute int         `json:"rate_per_minute"`
	Earlier       []int64     `json:"earlier"`
	Headers       [][2]string `json:"headers"`
	Body          []byte      `json:"body_base64"` // encoding/json reads base64 into bytes
	Expect        struct {
		Status int    `json:"status"`
		Code   string `json:"code"`
		Ticket bool   `json:"ticket"`
	} `json:"expect"`
}

// passes tells whether one test vector gets its answer.
func (v vector) passes() bool {
	r := &receiver{secrets: v.Secrets, ratePerMinute: v.RatePerMinute, letThrough: v.Earlier}
	for _, nonce := range v.Seen {
		r.nonces.remember(nonce, v.Now)
	}
	headers := http.Header{}
	for _, header := range v.Headers {
		headers.Add(header[0], header[1])
	}
	header := func(name string) string { return strings.Join(headers.Values(name), ", ") }
	told := r.receive(header, v.Body, v.Now)
	_, hasTicket := told.body["id"]
	isRight := told.status == v.Expect.Status && told.body["code"] == v.Expect.Code && hasTicket == v.Expect.Ticket
	return isRight && (told.waitSeconds > 0) == (told.status == http.StatusTooManyRequests)
}

func runVectors(path string) int {
	var file struct {
		Vectors []vector `json:"vectors"`
	}
	content, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(content, &file)
	}
	if err != nil {
		log.Fatal(err)
	}
	failed := 0
	for _, each := range file.Vectors {
		if !each.passes() {
			failed++
			fmt.Println("failed:", each.Name)
		}
	}
	fmt.Printf("%d passed, %d failed\n", len(file.Vectors)-failed, failed)
	if failed > 0 {
		return 1
	}
	return 0
}

func fromEnvironment(name, otherwise string) string {
	if value := os.Getenv(name); value != "" {
		return value
	}
	return otherwise
}

func main() {
	if len(os.Args) == 3 && os.Args[1] == "--vectors" {
		os.Exit(runVectors(os.Args[2]))
	}
	var secrets []string
	for _, name := range []string{"WEBHOOK_SECRET", "WEBHOOK_SECRET_OLD"} {
		if secret := os.Getenv(name); secret != "" {
			secrets = append(secrets, secret)
		}
	}
	if len(secrets) == 0 {
		fmt.Fprintln(os.Stderr, "Set WEBHOOK_SECRET to the secret that deliveries are signed with.")
		os.Exit(2)
	}
	rate, err := strconv.Atoi(fromEnvironment("RATE_PER_MINUTE", "0"))
	if err != nil {
		log.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:"+fromEnvironment("PORT", "9000"))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("Listening on http://%s\n", listener.Addr())
	server := http.Server{Handler: &receiver{secrets: secrets, ratePerMinute: rate}, ReadTimeout: idleTimeout}
	log.Fatal(server.Serve(listener))
}
