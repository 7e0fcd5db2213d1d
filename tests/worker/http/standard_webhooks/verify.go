// Verifies one request, read from standard input as JSON, with the reference library of Standard Webhooks for Go.
package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

type request struct {
	Secret  string            `json:"secret"`
	Headers map[string]string `json:"headers"`
	Body    string            `json:"body"`
}

func main() {
	var received request
	if err := json.NewDecoder(os.Stdin).Decode(&received); err != nil {
		fmt.Println(err)
		os.Exit(2)
	}
	webhook, err := standardwebhooks.NewWebhook(received.Secret)
	if err != nil {
		fmt.Println(err)
		os.Exit(2)
	}
	headers := http.Header{}
	for name, value := range received.Headers {
		headers.Set(name, value)
	}
	if err := webhook.Verify([]byte(received.Body), headers); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}
