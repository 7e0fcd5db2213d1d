<?php
// Receive RiskRelay's deliveries: verify them, open one ticket for each, say what is wrong with the others.
//
//     WEBHOOK_SECRET=... php -S 127.0.0.1:9000 receiver.php
//     php receiver.php --vectors vectors.json      # try it on the test vectors
//
// Needs nothing but PHP 8.1 or newer. Run it, copy from it, or put it behind your web server.

declare(strict_types=1);

const TOLERANCE_S = 300; // how far the sender's clock may be off
const REMEMBERED_S = 2 * TOLERANCE_S; // a nonce can come again for as long as its timestamp is accepted
const MAX_REMEMBERED = 10_000; // bounds the file of state: beyond it the oldest are forgotten
const MAX_BODY_BYTES = 4 * 1024 * 1024;

// Tell whether a request is genuine, fresh, and here for the first time. $secrets are several while they are rotated;
// $headers has lower-case names; $body is the raw bytes of php://input; $now is in unix seconds. $isReplay($nonce) remembers
// a nonce and tells whether it was known; it is asked last, so that forgers cannot fill the memory.
function verify(array $secrets, array $headers, string $body, int $now, callable $isReplay): bool
{
    $timestamp = $headers['x-service-timestamp'] ?? '';
    $nonce = $headers['x-service-nonce'] ?? '';
    // Without these forms signed bytes could move between timestamp, nonce and body.
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

// Judge one request; return status, body, headers. 2xx says that the ticket is ours from now on. $state is what is
// remembered between requests, which a real receiver keeps in its database: nonces, times let through, tickets.
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
        return [200, [], []]; // a test: no ticket
    }
    $key = $headers['idempotency-key'] ?? '';
    // A key of other bytes, which nobody sends, could not be kept as JSON.
    $isKey = preg_match('/\A[!-~]+\z/', $key) === 1;
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

// Open a ticket, once a key: a delivery whose answer was lost comes again. In a database the key is a unique column
// beside the ticket.
function ticketFor(array &$state, string $key, array $ticket): string
{
    if (!isset($state['tickets'][$key])) {
        remember($state['tickets'], $key, 'T-' . ++$state['last_number']); // your tracker takes $ticket here
    }
    return $state['tickets'][$key];
}

function remember(array &$memory, string $name, int|string $value): void
{
    $memory[$name] = $value;
    if (count($memory) > MAX_REMEMBERED) {
        unset($memory[array_key_first($memory)]);
    }
}

function newState(): array
{
    return ['nonces' => [], 'let_through' => [], 'tickets' => [], 'last_number' => 0];
}

// Answer the request that PHP runs this file for. PHP forgets everything between two requests, so a file under a lock
// stands in for the database; without the lock two copies of a request could both pass.
function serve(): void
{
    $secrets = array_filter([(string) getenv('WEBHOOK_SECRET'), (string) getenv('WEBHOOK_SECRET_OLD')], 'strlen');
    $body = (string) file_get_contents('php://input', false, null, 0, MAX_BODY_BYTES + 1);
    if (!$secrets) {
        error_log('Set WEBHOOK_SECRET to the secret that deliveries are signed with.');
        answer(503, [], []);
    } elseif ($_SERVER['REQUEST_METHOD'] !== 'POST') {
        answer(405, [], ['Allow' => 'POST']);
    } elseif (strlen($body) > MAX_BODY_BYTES) {
        answer(413, ['code' => 'WEBHOOK_VALIDATION_FAILED'], []);
    } else {
        $path = getenv('STATE_FILE') ?: sys_get_temp_dir() . "/receiver-{$_SERVER['SERVER_PORT']}.json";
        $file = fopen($path, 'c+');
        flock($file, LOCK_EX);
        $state = json_decode((string) stream_get_contents($file), true) ?? newState();
        $headers = array_change_key_case(getallheaders());
        $rate = (int) getenv('RATE_PER_MINUTE');
        $answer = receive($state, $secrets, $rate, $headers, $body, time());
        $content = json_encode($state, JSON_THROW_ON_ERROR); // before the file is emptied
        ftruncate($file, 0);
        rewind($file);
        fwrite($file, $content);
        fclose($file);
        answer(...$answer);
    }
}

function answer(int $status, array $body, array $headers): void
{
    http_response_code($status);
    header('Content-Type: application/json');
    foreach ($headers as $name => $value) {
        header("$name: $value");
    }
    echo json_encode((object) $body, JSON_UNESCAPED_SLASHES);
}

// Tell whether one test vector gets its answer.
function passes(array $vector): bool
{
    $state = newState();
    $state['nonces'] = array_fill_keys($vector['seen'], $vector['now']);
    $state['let_through'] = $vector['earlier'];
    $headers = [];
    foreach ($vector['headers'] as [$name, $value]) {
        $name = strtolower($name);
        $headers[$name] = isset($headers[$name]) ? "$headers[$name], $value" : $value;
    }
    $body = base64_decode($vector['body_base64'], true);
    [$status, $told, $further] =
        receive($state, $vector['secrets'], $vector['rate_per_minute'], $headers, $body, $vector['now']);
    $told = ['status' => $status, 'code' => $told['code'] ?? null, 'ticket' => isset($told['id'])];
    return $told === $vector['expect'] && isset($further['Retry-After']) === ($status === 429);
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
