# frozen_string_literal: true

# Example receiver for RiskRelay: verifies deliveries, creates one ticket for each, and applies its events.
#
#     WEBHOOK_SECRET=... PORT=9000 ruby receiver.rb
#     ruby receiver.rb --vectors vectors.json      # run the test vectors
#
# Needs only Ruby 3.0 or newer. Run it, copy from it, or require_relative "receiver" and call verify.

require "json"
require "openssl"
require "socket"
require "timeout"

TOLERANCE_S = 300 # allowed difference from the sender's clock
REMEMBERED_S = 2 * TOLERANCE_S # a request can be replayed for as long as its timestamp is accepted
MAX_REMEMBERED = 100_000 # memory limit: beyond it the oldest entries are dropped
MAX_BODY_BYTES = 4 * 1024 * 1024
MAX_HEADERS = 100
IDLE_TIMEOUT_S = 30
REASONS = { 200 => "OK", 401 => "Unauthorized", 405 => "Method Not Allowed", 411 => "Length Required",
            413 => "Content Too Large", 422 => "Unprocessable Content", 429 => "Too Many Requests" }.freeze
# Status of a ticket after each event; nil: unchanged. A target only gets the events in its setting `events`.
EVENTS = { "ticket.updated" => nil, "ticket.fixed" => "closed", "ticket.reopened" => "open", "ticket.redact" => nil }.freeze

# Return whether a request is authentic, recent and not a replay. `secrets` has several entries during a rotation; `headers`
# has lower-case names; `body` is the raw bytes (in Rails: request.raw_post), read before any parsing; `now` is in unix
# seconds. The block stores a nonce and returns whether it was known; it is called last, so that forged requests cannot fill
# the memory.
def verify(secrets, headers, body, now)
  timestamp = headers.fetch("x-service-timestamp", "")
  nonce = headers.fetch("x-service-nonce", "")
  # Without these checks, signed bytes could be moved between timestamp, nonce and body.
  return false unless timestamp.match?(/\A[0-9]{1,15}\z/) && nonce.match?(/\A[0-9A-Fa-f]{32}\z/)
  return false if (now - timestamp.to_i).abs > TOLERANCE_S

  given = headers.fetch("x-service-signature", "")
  message = "#{timestamp}.#{nonce}.".b + body.b
  matches = secrets.map do |secret|
    OpenSSL.secure_compare("sha256=#{OpenSSL::HMAC.hexdigest("SHA256", secret, message)}", given)
  end
  matches.any? && !yield(nonce)
end

# Handles requests. Keeps its state in memory; a production receiver keeps it in its database.
class Receiver
  attr_writer :nonces, :let_through, :events
  attr_reader :tickets

  def initialize(secrets, rate_per_minute = 0)
    @secrets = secrets
    @rate_per_minute = rate_per_minute # 0 is no limit
    @nonces = {} # nonce to time of receipt
    @let_through = [] # times of accepted requests in the last minute
    @tickets = {} # by Idempotency-Key, the export's id; in a database, use a unique column next to the ticket
    @events = {} # Idempotency-Key of an event to time of receipt
    @last_number = 0
    @lock = Mutex.new
  end

  # Handle one request; return status, body, headers. 2xx confirms that the ticket is stored.
  def receive(headers, body, now)
    @lock.synchronize do
      genuine = verify(@secrets, headers, body, now) { |nonce| replay?(nonce, now) }
      return [401, { code: "WEBHOOK_SIGNATURE_INVALID" }, {}] unless genuine

      seconds = wait_s(now)
      return [429, { code: "WEBHOOK_RATE_LIMITED" }, { "Retry-After" => seconds.to_s }] if seconds.positive?

      event = read_event(body)
      return [200, {}, {}] if event["type"] == "target.ping" # a test event: create no ticket

      key = headers.fetch("idempotency-key", "")
      if ticket_event?(event) && !key.empty?
        apply(key, event, now)
        return [200, {}, {}]
      end

      ticket = event["ticket"]
      is_ticket = event["type"] == "ticket.export" && ticket.is_a?(Hash) && ticket["title"].is_a?(String)
      return [422, { code: "WEBHOOK_VALIDATION_FAILED" }, {}] unless is_ticket && !key.empty?

      id = ticket_for(key, ticket)
      [200, { id: id, url: "https://tracker.example/#{id}" }, {}]
    end
  end

  private

  def replay?(nonce, now)
    @nonces.shift while @nonces.any? && @nonces.first.last < now - REMEMBERED_S
    return true if @nonces.key?(nonce)

    remember(@nonces, nonce, now)
    false
  end

  def wait_s(now)
    @let_through = @let_through.select { |at| at > now - 60 }
    return 0 if @rate_per_minute.zero?
    return @let_through.first + 60 - now if @let_through.size >= @rate_per_minute

    @let_through << now
    0
  end

  # Create a ticket once per key: a delivery is repeated if its response was lost.
  def ticket_for(key, ticket)
    unless @tickets.key?(key)
      stored = { id: "T-#{@last_number += 1}", status: "open", texts: [ticket["title"]] }
      remember(@tickets, key, stored) # pass the ticket to your tracker here
    end
    @tickets[key][:id]
  end

  def ticket_event?(event)
    export = event["export"]
    has_export = export.is_a?(Hash) && export["id"].is_a?(String)
    EVENTS.key?(event["type"]) && has_export && event["change"].is_a?(Hash)
  end

  # Apply an event to its ticket once. Ignore an event whose ticket never arrived: a retry would not change that.
  def apply(key, event, now)
    ticket = @tickets[event["export"]["id"]]
    return if ticket.nil? || @events.key?(key)

    if event["type"] == "ticket.redact"
      # Erase the content in your tracker, too, before the 2xx. The id and this key remain as the proof.
      ticket.update(texts: [], erased_by: key)
    else
      added, fixed, open = event["change"].values_at("places_added", "places_fixed", "places_open")
      ticket[:status] = EVENTS[event["type"]] || ticket[:status]
      ticket[:texts] << "#{added} places added, #{fixed} fixed, #{open} open"
    end
    remember(@events, key, now)
  end

  def remember(memory, name, value)
    memory[name] = value
    memory.shift if memory.size > MAX_REMEMBERED
  end

  def read_event(body)
    text = body.dup.force_encoding("UTF-8")
    event = text.valid_encoding? ? JSON.parse(text) : nil
    event.is_a?(Hash) ? event : {}
  rescue JSON::ParserError
    {}
  end
end

# One request on one connection. In an application your web server does this.
class Connection
  def initialize(socket, receiver)
    @socket = socket
    @receiver = receiver
  end

  def serve
    response = read_and_handle
    write(*response) if response
  rescue Timeout::Error, SystemCallError, IOError
    nil # the sender closed the connection or timed out
  ensure
    @socket.close
  end

  private

  def read_and_handle
    # The timeout applies to reading only: handling must not be interrupted.
    line, headers = Timeout.timeout(IDLE_TIMEOUT_S) { [@socket.gets("\r\n", 8192), read_headers] }
    return if line.nil?
    return [405, {}, { "Allow" => "POST" }] unless line.start_with?("POST ")

    length = headers.fetch("content-length", "")
    return [411, { code: "WEBHOOK_VALIDATION_FAILED" }, {}] unless length.match?(/\A[0-9]{1,15}\z/)
    return [413, { code: "WEBHOOK_VALIDATION_FAILED" }, {}] if length.to_i > MAX_BODY_BYTES

    body = Timeout.timeout(IDLE_TIMEOUT_S) { @socket.read(length.to_i) } || ""
    @receiver.receive(headers, body, Time.now.to_i) if body.bytesize == length.to_i
  end

  def read_headers
    headers = {}
    MAX_HEADERS.times do
      line = @socket.gets("\r\n", 8192, chomp: true)
      return headers if line.nil? || line.empty?

      name, value = line.split(":", 2).map(&:strip)
      headers[name.downcase] = [headers[name.downcase], value.to_s].compact.join(", ")
    end
    raise IOError, "more headers than any sender needs"
  end

  def write(status, body, headers)
    content = JSON.generate(body)
    all = { "Content-Type" => "application/json", "Content-Length" => content.bytesize, "Connection" => "close" }
    lines = all.merge(headers).map { |name, value| "#{name}: #{value}\r\n" }
    @socket.write("HTTP/1.1 #{status} #{REASONS.fetch(status)}\r\n#{lines.join}\r\n#{content}")
  end
end

def serve(receiver, port)
  server = TCPServer.new("127.0.0.1", port)
  puts "Listening on http://127.0.0.1:#{server.addr[1]}"
  $stdout.flush
  loop { Thread.new(server.accept) { |socket| Connection.new(socket, receiver).serve } }
rescue Interrupt
  nil
end

# Return whether one test vector gets the expected response.
def passes?(vector)
  receiver = Receiver.new(vector["secrets"], vector["rate_per_minute"])
  receiver.nonces = vector["seen"].to_h { |nonce| [nonce, vector["now"]] }
  receiver.let_through = vector["earlier"]
  receiver.events = vector["processed"].to_h { |key| [key, vector["now"]] }
  vector["tickets"].each { |key, each| receiver.tickets[key] = { status: each["status"], texts: [""] * each["texts"] } }
  headers = {}
  vector["headers"].each { |name, value| headers[name.downcase] = [headers[name.downcase], value].compact.join(", ") }
  status, body, further = receiver.receive(headers, vector["body_base64"].unpack1("m0"), vector["now"])
  actual = { "status" => status, "code" => body[:code], "ticket" => body.key?(:id) }
  after = receiver.tickets.transform_values { |each| { "status" => each[:status], "texts" => each[:texts].size } }
  actual == vector["expect"] && after == vector["after"] && further.key?("Retry-After") == (status == 429)
end

def run_vectors(path)
  vectors = JSON.parse(File.read(path, encoding: "UTF-8"))["vectors"]
  failed = vectors.reject { |vector| passes?(vector) }
  failed.each { |vector| puts "failed: #{vector["name"]}" }
  puts "#{vectors.size - failed.size} passed, #{failed.size} failed"
  failed.empty?
end

def main
  exit(run_vectors(ARGV[1])) if ARGV[0] == "--vectors"
  secrets = ENV.values_at("WEBHOOK_SECRET", "WEBHOOK_SECRET_OLD").reject { |secret| secret.to_s.empty? }
  if secrets.empty?
    warn "Set WEBHOOK_SECRET to the secret that deliveries are signed with."
    exit 2
  end
  rate_per_minute = Integer(ENV.fetch("RATE_PER_MINUTE", "0"))
  serve(Receiver.new(secrets, rate_per_minute), Integer(ENV.fetch("PORT", "9000")))
end

main if $PROGRAM_NAME == __FILE__
