// Example receiver for RiskRelay: verifies deliveries, creates one ticket for each, and applies its events.
//
//	WEBHOOK_SECRET=... PORT=9000 go run receiver.go
//	go run receiver.go --vectors vectors.json      # run the test vectors
//
// Needs only Go 1.19 or newer. Run it, or copy from it.
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
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"
)

const (
	tolerance     = 300           // seconds of difference allowed from the sender's clock
	remembered    = 2 * tolerance // a request can be replayed for as long as its timestamp is accepted
	maxRemembered = 100_000       // memory limit: beyond it the oldest entries are dropped
	maxBodyBytes  = 4 << 20
	idleTimeout   = 30 * time.Second
)

var (
	timestampForm = regexp.MustCompile(`^[0-9]{1,15}$`)
	nonceForm     = regexp.MustCompile(`^[0-9A-Fa-f]{32}$`)
	// Status of a ticket after each event; empty: unchanged. A target only gets the events in its setting `events`.
	statusAfter = map[string]string{"ticket.updated": "", "ticket.fixed": "closed", "ticket.reopened": "open", "ticket.redact": ""}
)

// verify returns whether a request is authentic, recent and not a replay. secrets has several entries during a rotation;
// header returns a header's value; body is the raw bytes of io.ReadAll, before any parsing; now is in unix seconds. isReplay
// stores a nonce and returns whether it was known; it is called last, so that forged requests cannot fill the memory.
func verify(secrets []string, header func(string) string, body []byte, now int64, isReplay func(string) bool) bool {
	timestamp, nonce := header("X-Service-Timestamp"), header("X-Service-Nonce")
	// Without these checks, signed bytes could be moved between timestamp, nonce and body.
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
	Export struct {
		ID *string `json:"id"`
	} `json:"export"`
	Change map[string]any `json:"change"`
}

// ticket has as texts its title and a note for each event; none after its content was erased by an event.
type ticket struct {
	id, status, erasedBy string
	texts                []string
}

type response struct {
	status      int
	body        map[string]string
	waitSeconds int64 // 0 if there is no wait
}

// receiver handles requests. It keeps its state in memory; a production receiver keeps it in its database.
type receiver struct {
	secrets       []string
	ratePerMinute int // 0 is no limit
	mutex         sync.Mutex
	nonces        memory[int64]   // nonce to time of receipt
	letThrough    []int64         // times of accepted requests in the last minute
	tickets       memory[*ticket] // by Idempotency-Key, the export's id; in a database, use a unique column
	events        memory[int64]   // Idempotency-Key of an event to time of receipt
	lastNumber    int
}

// receive handles one request; 2xx confirms that the ticket is stored.
func (r *receiver) receive(header func(string) string, body []byte, now int64) response {
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
	var received event
	err := json.Unmarshal(body, &received)
	isReadable := err == nil && utf8.Valid(body)
	if isReadable && received.Type == "target.ping" {
		return response{status: http.StatusOK, body: map[string]string{}} // a test event: create no ticket
	}
	key := header("Idempotency-Key")
	_, isEvent := statusAfter[received.Type]
	if isReadable && isEvent && received.Export.ID != nil && received.Change != nil && key != "" {
		r.apply(key, received, now)
		return response{status: http.StatusOK, body: map[string]string{}}
	}
	if !isReadable || received.Type != "ticket.export" || received.Ticket == nil || received.Ticket.Title == nil || key == "" {
		return refusal(http.StatusUnprocessableEntity, "WEBHOOK_VALIDATION_FAILED")
	}
	id := r.ticketFor(key, *received.Ticket.Title)
	return response{status: http.StatusOK, body: map[string]string{"id": id, "url": "https://tracker.example/" + id}}
}

func refusal(status int, code string) response {
	return response{status: status, body: map[string]string{"code": code}}
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

// ticketFor creates a ticket once per key: a delivery is repeated if its response was lost.
func (r *receiver) ticketFor(key, title string) string {
	if _, isKnown := r.tickets.values[key]; !isKnown {
		r.lastNumber++
		stored := &ticket{id: fmt.Sprintf("T-%d", r.lastNumber), status: "open", texts: []string{title}}
		r.tickets.remember(key, stored) // pass the ticket to your tracker here
	}
	return r.tickets.values[key].id
}

// apply applies an event to its ticket once; it ignores an event whose ticket never arrived, since a retry would not change that.
func (r *receiver) apply(key string, received event, now int64) {
	found, change := r.tickets.values[*received.Export.ID], received.Change
	if _, isKnown := r.events.values[key]; isKnown || found == nil {
		return
	}
	if received.Type == "ticket.redact" {
		// Erase the content in your tracker, too, before the 2xx. The id and this key remain as the proof.
		found.texts, found.erasedBy = nil, key
	} else {
		if status := statusAfter[received.Type]; status != "" {
			found.status = status
		}
		counts := []any{change["places_added"], change["places_fixed"], change["places_open"]}
		found.texts = append(found.texts, fmt.Sprintf("%v places added, %v fixed, %v open", counts...))
	}
	r.events.remember(key, now)
}

// memory is a map that keeps insertion order.
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
	case err != nil: // the body is incomplete; without an explicit status, Go responds with 200
		w.WriteHeader(http.StatusRequestTimeout)
	case request.Method != http.MethodPost:
		w.Header().Set("Allow", http.MethodPost)
		write(w, response{status: http.StatusMethodNotAllowed, body: map[string]string{}})
	default:
		// verify rejects a repeated header, because it contains a comma.
		header := func(name string) string { return strings.Join(request.Header.Values(name), ", ") }
		write(w, r.receive(header, body, time.Now().Unix()))
	}
}

func write(w http.ResponseWriter, result response) {
	w.Header().Set("Content-Type", "application/json")
	if result.waitSeconds > 0 {
		w.Header().Set("Retry-After", strconv.FormatInt(result.waitSeconds, 10))
	}
	w.WriteHeader(result.status)
	json.NewEncoder(w).Encode(result.body)
}

type counted struct {
	Status string `json:"status"`
	Texts  int    `json:"texts"`
}

type vector struct {
	Name          string             `json:"name"`
	Secrets       []string           `json:"secrets"`
	Now           int64              `json:"now"`
	Seen          []string           `json:"seen"`
	RatePerMinute int                `json:"rate_per_minute"`
	Earlier       []int64            `json:"earlier"`
	Tickets       map[string]counted `json:"tickets"`
	Processed     []string           `json:"processed"`
	After         map[string]counted `json:"after"`
	Headers       [][2]string        `json:"headers"`
	Body          []byte             `json:"body_base64"` // encoding/json reads base64 into bytes
	Expect        struct {
		Status int    `json:"status"`
		Code   string `json:"code"`
		Ticket bool   `json:"ticket"`
	} `json:"expect"`
}

// passes returns whether one test vector gets the expected response.
func (v vector) passes() bool {
	r := &receiver{secrets: v.Secrets, ratePerMinute: v.RatePerMinute, letThrough: v.Earlier}
	for _, nonce := range v.Seen {
		r.nonces.remember(nonce, v.Now)
	}
	for _, key := range v.Processed {
		r.events.remember(key, v.Now)
	}
	for key, each := range v.Tickets {
		r.tickets.remember(key, &ticket{status: each.Status, texts: make([]string, each.Texts)})
	}
	headers := http.Header{}
	for _, header := range v.Headers {
		headers.Add(header[0], header[1])
	}
	header := func(name string) string { return strings.Join(headers.Values(name), ", ") }
	result := r.receive(header, v.Body, v.Now)
	_, hasTicket := result.body["id"]
	after := map[string]counted{}
	for key, each := range r.tickets.values {
		after[key] = counted{each.status, len(each.texts)}
	}
	isRight := result.status == v.Expect.Status && result.body["code"] == v.Expect.Code && hasTicket == v.Expect.Ticket
	return isRight && reflect.DeepEqual(after, v.After) && (result.waitSeconds > 0) == (result.status == http.StatusTooManyRequests)
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
