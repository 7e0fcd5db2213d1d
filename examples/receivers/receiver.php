<?php
// Example receiver for RiskRelay: verifies deliveries, creates one ticket for each, and applies its events.
//
//     WEBHOOK_SECRET=... php -S 127.0.0.1:9000 receiver.php
//     php receiver.php --vectors vectors.json      # run the test vectors
//
// Needs only PHP 8.1 or newer. Run it, copy from it, or put it behind your web server.

declare(strict_types=1);

const TOLERANCE_S = 300; // allowed difference from the sender's clock
const REMEMBERED_S = 2 * TOLERANCE_S; // a request can be replayed for as long as its timestamp is accepted
const MAX_REMEMBERED = 10_000; // limits the state file: beyond it the oldest entries are dropped
const MAX_BODY_BYTES = 4 * 1024 * 1024;

// Status of a ticket after each event; null: unchanged. A target only gets the events in its setting `events`.
const EVENTS = ['ticket.updated' => null, 'ticket.fixed' => 'closed', 'ticket.reopened' => 'open', 'ticket.redact' => null];

// Return whether a request is authentic, recent and not a replay. $secrets has several entries during a rotation; $headers
// has lower-case names; $body is the raw bytes of php://input; $now is in unix seconds. $isReplay($nonce) stores a nonce and
// returns whether it was known; it is called last, so that forged requests cannot fill the memory.
function verify(array $secrets, array $headers, string $body, int $now, callable $isReplay): bool
{
    $timestamp = $headers['x-service-timestamp'] ?? '';
    $nonce = $headers['x-service-nonce'] ?? '';
    // Without these checks, signed bytes could be moved between timestamp, nonce and body.
    if (!preg_match('/\A[0-9]{1,15}\z/', $timestamp) || !preg_match('/\A[0-9A-Fa-f]{32}\z/', $nonce)) {
        return false;
    }
    if (abs($now - (int) $timestamp) > TOLERANCE_S) {
        return false;
    }
    $isSigned = false;
    foreach ($secrets as $secret) {
        $expected = 'sha256=' . hash_hmac('sha256', "$timestamp.$nonce.$body", $secret);
        $isSigned = hash_equals($expected, $headers['x-service-signature'] ?? '') || $isSigned;
    }
    return $isSigned && !$isReplay($nonce);
}

// Handle one request; return status, body, headers. 2xx confirms that the ticket is stored. $state holds nonces, times of
// accepted requests and tickets between requests; a production receiver keeps it in its database.
function receive(array &$state, array $secrets, int $ratePerMinute, array $headers, string $body, int $now): array
{
    $isReplay = function (string $nonce) use (&$state, $now): bool {
        return isReplay($state['nonces'], $nonce, $now);
    };
    if (!verify($secrets, $headers, $body, $now, $isReplay)) {
        return [401, ['code' => 'WEBHOOK_SIGNATURE_INVALID'], []];
    }
    $waitS = waitS($state['let_through'], $ratePerMinute, $now);
    if ($waitS > 0) {
        return [429, ['code' => 'WEBHOOK_RATE_LIMITED'], ['Retry-After' => (string) $waitS]];
    }
    $event = json_decode($body, true);
    $type = is_array($event) ? $event['type'] ?? null : null;
    if ($type === 'target.ping') {
        return [200, [], []]; // a test event: create no ticket
    }
    $key = $headers['idempotency-key'] ?? '';
    // A key with other bytes, which RiskRelay never sends, cannot be stored as JSON.
    $isKey = preg_match('/\A[!-~]+\z/', $key) === 1;
    if (isTicketEvent($event) && $isKey) {
        apply($state, $key, $event, $now);
        return [200, [], []];
    }
    if ($type !== 'ticket.export' || !is_string($event['ticket']['title'] ?? null) || !$isKey) {
        return [422, ['code' => 'WEBHOOK_VALIDATION_FAILED'], []];
    }
    $id = ticketFor($state, $key, $event['ticket']);
    return [200, ['id' => $id, 'url' => "https://tracker.example/$id"], []];
}

function isReplay(array &$nonces, string $nonce, int $now): bool
{
    $nonces = array_filter($nonces, fn (int $at): bool => $at >= $now - REMEMBERED_S);
    if (isset($nonces[$nonce])) {
        return true;
    }
    remember($nonces, $nonce, $now);
    return false;
}

function waitS(array &$letThrough, int $ratePerMinute, int $now): int
{
    $letThrough = array_values(array_filter($letThrough, fn (int $at): bool => $at > $now - 60));
    if ($ratePerMinute > 0 && count($letThrough) >= $ratePerMinute) {
        return $letThrough[0] + 60 - $now;
    }
    if ($ratePerMinute > 0) {
        $letThrough[] = $now;
    }
    return 0;
}

// Create a ticket once per key: a delivery is repeated if its response was lost. In a database,
// store the key in a unique column next to the ticket.
function ticketFor(array &$state, string $key, array $ticket): string
{
    if (!isset($state['tickets'][$key])) {
        $stored = ['id' => 'T-' . ++$state['last_number'], 'status' => 'open', 'texts' => [$ticket['title']]];
        remember($state['tickets'], $key, $stored); // pass $ticket to your tracker here
    }
    return $state['tickets'][$key]['id'];
}

function isTicketEvent(mixed $event): bool
{
    $type = is_array($event) ? $event['type'] ?? null : null;
    return is_string($type) && array_key_exists($type, EVENTS)
        && is_string($event['export']['id'] ?? null) && is_array($event['change'] ?? null);
}

// Apply an event to its ticket once. Ignore an event whose ticket never arrived: a retry would not change that.
function apply(array &$state, string $key, array $event, int $now): void
{
    $ticket = $state['tickets'][$event['export']['id']] ?? null;
    if ($ticket === null || isset($state['events'][$key])) {
        return;
    }
    if ($event['type'] === 'ticket.redact') {
        // Erase the content in your tracker, too, before the 2xx. The id and this key remain as the proof.
        $ticket = ['texts' => [], 'erased_by' => $key] + $ticket;
    } else {
        $counts = array_map(fn (string $each) => $event['change']["places_$each"] ?? 0, ['added', 'fixed', 'open']);
        $ticket['status'] = EVENTS[$event['type']] ?? $ticket['status'];
        $ticket['texts'][] = vsprintf('%d places added, %d fixed, %d open', $counts);
    }
    $state['tickets'][$event['export']['id']] = $ticket;
    remember($state['events'], $key, $now);
}

function remember(array &$memory, string $name, int|array $value): void
{
    $memory[$name] = $value;
    if (count($memory) > MAX_REMEMBERED) {
        unset($memory[array_key_first($memory)]);
    }
}

function newState(): array
{
    return ['nonces' => [], 'let_through' => [], 'tickets' => [], 'events' => [], 'last_number' => 0];
}

// Respond to the request that PHP runs this file for. PHP keeps no memory between two requests, so a locked file replaces
// the database; without the lock, two copies of a request could both be accepted.
function serve(): void
{
    $secrets = array_filter([(string) getenv('WEBHOOK_SECRET'), (string) getenv('WEBHOOK_SECRET_OLD')], 'strlen');
    $body = (string) file_get_contents('php://input', false, null, 0, MAX_BODY_BYTES + 1);
    if (!$secrets) {
        error_log('Set WEBHOOK_SECRET to the secret that deliveries are signed with.');
        respond(503, [], []);
    } elseif ($_SERVER['REQUEST_METHOD'] !== 'POST') {
        respond(405, [], ['Allow' => 'POST']);
    } elseif (strlen($body) > MAX_BODY_BYTES) {
        respond(413, ['code' => 'WEBHOOK_VALIDATION_FAILED'], []);
    } else {
        $path = getenv('STATE_FILE') ?: sys_get_temp_dir() . "/receiver-{$_SERVER['SERVER_PORT']}.json";
        umask(0077); // the file has the titles of tickets
        $file = fopen($path, 'c+');
        flock($file, LOCK_EX);
        $state = json_decode((string) stream_get_contents($file), true);
        $state = isset($state['events']) ? $state : newState(); // the file is empty, or of an earlier version
        $headers = array_change_key_case(getallheaders());
        $rate = (int) getenv('RATE_PER_MINUTE');
        $response = receive($state, $secrets, $rate, $headers, $body, time());
        $content = json_encode($state, JSON_THROW_ON_ERROR); // before the file is truncated
        ftruncate($file, 0);
        rewind($file);
        fwrite($file, $content);
        fclose($file);
        respond(...$response);
    }
}

function respond(int $status, array $body, array $headers): void
{
    http_response_code($status);
    header('Content-Type: application/json');
    foreach ($headers as $name => $value) {
        header("$name: $value");
    }
    echo json_encode((object) $body, JSON_UNESCAPED_SLASHES);
}

// Return whether one test vector gets the expected response.
function passes(array $vector): bool
{
    $state = newState();
    $state['nonces'] = array_fill_keys($vector['seen'], $vector['now']);
    $state['let_through'] = $vector['earlier'];
    $state['events'] = array_fill_keys($vector['processed'], $vector['now']);
    $stored = fn (array $each): array => ['id' => 'T-0', 'texts' => array_fill(0, $each['texts'], '')] + $each;
    $state['tickets'] = array_map($stored, $vector['tickets']);
    $headers = [];
    foreach ($vector['headers'] as [$name, $value]) {
        $name = strtolower($name);
        $headers[$name] = isset($headers[$name]) ? "$headers[$name], $value" : $value;
    }
    $body = base64_decode($vector['body_base64'], true);
    [$status, $reply, $further] =
        receive($state, $vector['secrets'], $vector['rate_per_minute'], $headers, $body, $vector['now']);
    $actual = ['status' => $status, 'code' => $reply['code'] ?? null, 'ticket' => isset($reply['id'])];
    $counted = fn (array $each): array => ['status' => $each['status'], 'texts' => count($each['texts'])];
    $isRight = $actual === $vector['expect'] && array_map($counted, $state['tickets']) === $vector['after'];
    return $isRight && isset($further['Retry-After']) === ($status === 429);
}

function runVectors(string $path): int
{
    $vectors = json_decode((string) file_get_contents($path), true, 512, JSON_THROW_ON_ERROR)['vectors'];
    $failed = array_filter($vectors, fn (array $vector): bool => !passes($vector));
    foreach ($failed as $vector) {
        echo "failed: {$vector['name']}\n";
    }
    printf("%d passed, %d failed\n", count($vectors) - count($failed), count($failed));
    return $failed ? 1 : 0;
}

if (PHP_SAPI !== 'cli') {
    serve();
} elseif (($argv[1] ?? '') === '--vectors') {
    exit(runVectors($argv[2]));
} else {
    echo "Start it with: WEBHOOK_SECRET=... php -S 127.0.0.1:9000 {$argv[0]}\n";
    exit(2);
}
