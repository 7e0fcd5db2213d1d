// Example receiver for RiskRelay: verifies deliveries, creates one ticket for each, and applies its events.
//
//     WEBHOOK_SECRET=... PORT=9000 java Receiver.java
//     java Receiver.java --vectors vectors.json      # run the test vectors
//
// Needs only Java 17 or newer. Run it, or copy from it.

import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.GeneralSecurityException;
import java.security.MessageDigest;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Collections;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.TreeMap;
import java.util.concurrent.Executors;
import java.util.function.Predicate;
import java.util.stream.Stream;
import javax.crypto.Mac;
import javax.crypto.spec.SecretKeySpec;

public class Receiver {
    static final long TOLERANCE_S = 300; // allowed difference from the sender's clock
    static final long REMEMBERED_S = 2 * TOLERANCE_S; // a request can be replayed for as long as its timestamp is accepted
    static final int MAX_REMEMBERED = 100_000; // memory limit: beyond it the oldest entries are dropped
    static final int MAX_BODY_BYTES = 4 * 1024 * 1024;
    static final String IDLE_TIMEOUT_S = "30";

    // Status of a ticket after each event; empty: unchanged. A target only gets the events in its setting `events`.
    static final Map<String, String> EVENTS =
            Map.of("ticket.updated", "", "ticket.fixed", "closed", "ticket.reopened", "open", "ticket.redact", "");

    /**
     * Return whether a request is authentic, recent and not a replay. secrets has several entries during a rotation; headers
     * is case-insensitive; body is the raw bytes of getInputStream(), before any parsing; now is in unix seconds. isReplay
     * stores a nonce and returns whether it was known; it is called last, so that forged requests cannot fill the memory.
     */
    static boolean verify(
            List<String> secrets, Map<String, String> headers, byte[] body, long now, Predicate<String> isReplay) {
        String timestamp = headers.getOrDefault("X-Service-Timestamp", "");
        String nonce = headers.getOrDefault("X-Service-Nonce", "");
        // Without these checks, signed bytes could be moved between timestamp, nonce and body.
        if (!timestamp.matches("[0-9]{1,15}") || !nonce.matches("[0-9A-Fa-f]{32}")) return false;
        if (Math.abs(now - Long.parseLong(timestamp)) > TOLERANCE_S) return false;
        byte[] given = headers.getOrDefault("X-Service-Signature", "").getBytes(StandardCharsets.UTF_8);
        boolean isSigned = false;
        for (String secret : secrets) {
            byte[] expected = ("sha256=" + hmac(secret, timestamp + "." + nonce + ".", body)).getBytes(StandardCharsets.UTF_8);
            isSigned |= MessageDigest.isEqual(expected, given);
        }
        return isSigned && !isReplay.test(nonce);
    }

    static String hmac(String secret, String prefix, byte[] body) {
        try {
            Mac mac = Mac.getInstance("HmacSHA256");
            mac.init(new SecretKeySpec(secret.getBytes(StandardCharsets.UTF_8), "HmacSHA256"));
            mac.update(prefix.getBytes(StandardCharsets.UTF_8));
            return HexFormat.of().formatHex(mac.doFinal(body));
        } catch (GeneralSecurityException e) {
            throw new IllegalStateException("Every Java has HmacSHA256.", e);
        }
    }

    record Response(int status, Map<String, String> body, Map<String, String> headers) {
        static Response refusal(int status, String code) {
            return new Response(status, Map.of("code", code), Map.of());
        }
    }

    /** A ticket; texts are its title and a note for each event, none after erasedBy, the key of a ticket.redact. */
    record Ticket(String id, String status, List<String> texts, String erasedBy) {}

    // This state is in memory; a production receiver keeps it in its database.
    final List<String> secrets;
    final int ratePerMinute; // 0 is no limit
    final Map<String, Long> nonces = new Memory<>(); // nonce to time of receipt
    final List<Long> letThrough = new ArrayList<>(); // times of accepted requests in the last minute
    final Map<String, Ticket> tickets = new Memory<>(); // by Idempotency-Key, the export's id: in a database, unique
    final Map<String, Long> events = new Memory<>(); // Idempotency-Key of an event to time of receipt
    int lastNumber = 0;

    Receiver(List<String> secrets, int ratePerMinute) {
        this.secrets = secrets;
        this.ratePerMinute = ratePerMinute;
    }

    /** Handle one request; 2xx confirms that the ticket is stored. */
    synchronized Response receive(Map<String, String> headers, byte[] body, long now) {
        if (!verify(secrets, headers, body, now, nonce -> isReplay(nonce, now))) {
            return Response.refusal(401, "WEBHOOK_SIGNATURE_INVALID");
        }
        long waitS = waitS(now);
        if (waitS > 0) {
            return new Response(429, Map.of("code", "WEBHOOK_RATE_LIMITED"), Map.of("Retry-After", Long.toString(waitS)));
        }
        Map<?, ?> event = readEvent(body);
        // A test event: create no ticket.
        if ("target.ping".equals(event.get("type"))) return new Response(200, Map.of(), Map.of());
        String key = headers.getOrDefault("Idempotency-Key", "");
        Object exportId = event.get("export") instanceof Map<?, ?> export ? export.get("id") : null;
        if (event.get("type") instanceof String type && EVENTS.containsKey(type) && exportId instanceof String
                && event.get("change") instanceof Map<?, ?> change && !key.isEmpty()) {
            if (tickets.containsKey(exportId) && events.putIfAbsent(key, now) == null) {
                tickets.compute((String) exportId, (unused, ticket) -> applied(ticket, key, type, change));
            }
            return new Response(200, Map.of(), Map.of());
        }
        Object title = event.get("ticket") instanceof Map<?, ?> ticket ? ticket.get("title") : null;
        if (!"ticket.export".equals(event.get("type")) || !(title instanceof String) || key.isEmpty()) {
            return Response.refusal(422, "WEBHOOK_VALIDATION_FAILED");
        }
        String id = ticketFor(key, (String) title);
        return new Response(200, Map.of("id", id, "url", "https://tracker.example/" + id), Map.of());
    }

    boolean isReplay(String nonce, long now) {
        nonces.values().removeIf(at -> at < now - REMEMBERED_S);
        return nonces.putIfAbsent(nonce, now) != null;
    }

    long waitS(long now) {
        letThrough.removeIf(at -> at <= now - 60);
        if (ratePerMinute == 0) return 0;
        if (letThrough.size() >= ratePerMinute) return letThrough.get(0) + 60 - now;
        letThrough.add(now);
        return 0;
    }

    /** Create a ticket once per key: a delivery is repeated if its response was lost. */
    String ticketFor(String key, String title) {
        // Pass the ticket to your tracker here.
        return tickets.computeIfAbsent(key, unused -> new Ticket("T-" + ++lastNumber, "open", List.of(title), "")).id;
    }

    /** Apply an event to its ticket. The caller ignores an event whose ticket never arrived: a retry would not change that. */
    static Ticket applied(Ticket ticket, String key, String type, Map<?, ?> change) {
        // Erase the content in your tracker, too, before the 2xx. The id and this key remain as the proof.
        if (type.equals("ticket.redact")) return new Ticket(ticket.id, ticket.status, List.of(), key);
        Object[] counts = Stream.of("places_added", "places_fixed", "places_open").map(change::get)
                .map(count -> count instanceof Double number ? number.longValue() : count).toArray();
        String note = "%s places added, %s fixed, %s open".formatted(counts);
        String status = EVENTS.get(type).isEmpty() ? ticket.status : EVENTS.get(type);
        return new Ticket(ticket.id, status, Stream.concat(ticket.texts.stream(), Stream.of(note)).toList(), ticket.erasedBy);
    }

    @SuppressWarnings("serial")
    static class Memory<V> extends LinkedHashMap<String, V> {
        @Override
        protected boolean removeEldestEntry(Map.Entry<String, V> eldest) {
            return size() > MAX_REMEMBERED;
        }
    }

    static Map<?, ?> readEvent(byte[] body) {
        try {
            String text = StandardCharsets.UTF_8.newDecoder().decode(ByteBuffer.wrap(body)).toString();
            return new Json(text).read() instanceof Map<?, ?> event ? event : Map.of();
        } catch (CharacterCodingException | IllegalArgumentException e) {
            return Map.of();
        }
    }

    void handle(HttpExchange exchange) throws IOException {
        try (exchange) {
            byte[] body = exchange.getRequestBody().readNBytes(MAX_BODY_BYTES + 1);
            Map<String, String> headers = new TreeMap<>(String.CASE_INSENSITIVE_ORDER);
            exchange.getRequestHeaders().forEach((name, values) -> headers.put(name, String.join(", ", values)));
            if (!exchange.getRequestMethod().equals("POST")) {
                write(exchange, new Response(405, Map.of(), Map.of("Allow", "POST")));
            } else if (body.length > MAX_BODY_BYTES) {
                write(exchange, Response.refusal(413, "WEBHOOK_VALIDATION_FAILED"));
            } else {
                write(exchange, receive(headers, body, System.currentTimeMillis() / 1000));
            }
        }
    }

    static void write(HttpExchange exchange, Response response) throws IOException {
        // No value in a response needs escaping.
        Stream<String> members =
                response.body.entrySet().stream().map(e -> "\"%s\": \"%s\"".formatted(e.getKey(), e.getValue()));
        byte[] content = ("{" + String.join(", ", members.toList()) + "}").getBytes(StandardCharsets.UTF_8);
        exchange.getResponseHeaders().set("Content-Type", "application/json");
        response.headers.forEach(exchange.getResponseHeaders()::set);
        exchange.sendResponseHeaders(response.status, content.length);
        exchange.getResponseBody().write(content);
    }

    /** Return whether one test vector gets the expected response. */
    static boolean passes(Map<?, ?> vector) {
        long now = number(vector.get("now"));
        Receiver receiver = new Receiver(strings(vector.get("secrets")), (int) number(vector.get("rate_per_minute")));
        strings(vector.get("seen")).forEach(nonce -> receiver.nonces.put(nonce, now));
        ((List<?>) vector.get("earlier")).forEach(at -> receiver.letThrough.add(number(at)));
        strings(vector.get("processed")).forEach(key -> receiver.events.put(key, now));
        ((Map<?, ?>) vector.get("tickets")).forEach((key, value) -> {
            Map<?, ?> stored = (Map<?, ?>) value;
            List<String> texts = Collections.nCopies((int) number(stored.get("texts")), "");
            receiver.tickets.put((String) key, new Ticket("T-0", (String) stored.get("status"), texts, ""));
        });
        Map<String, String> headers = new TreeMap<>(String.CASE_INSENSITIVE_ORDER);
        for (Object header : (List<?>) vector.get("headers")) {
            headers.merge(strings(header).get(0), strings(header).get(1), (one, other) -> one + ", " + other);
        }
        Response actual = receiver.receive(headers, Base64.getDecoder().decode((String) vector.get("body_base64")), now);
        Map<?, ?> expect = (Map<?, ?>) vector.get("expect");
        Map<String, Object> after = new LinkedHashMap<>();
        receiver.tickets.forEach(
                (key, each) -> after.put(key, Map.of("status", each.status, "texts", (double) each.texts.size())));
        return actual.status == number(expect.get("status"))
                && Objects.equals(actual.body.get("code"), expect.get("code"))
                && expect.get("ticket").equals(actual.body.containsKey("id"))
                && after.equals(vector.get("after"))
                && actual.headers.containsKey("Retry-After") == (actual.status == 429);
    }

    static List<String> strings(Object list) {
        return ((List<?>) list).stream().map(String.class::cast).toList();
    }

    static long number(Object value) {
        return ((Double) value).longValue();
    }

    static int runVectors(String path) throws IOException {
        List<?> vectors = (List<?>) ((Map<?, ?>) new Json(Files.readString(Path.of(path))).read()).get("vectors");
        List<?> failed = vectors.stream().filter(vector -> !passes((Map<?, ?>) vector)).toList();
        failed.forEach(vector -> System.out.println("failed: " + ((Map<?, ?>) vector).get("name")));
        System.out.printf("%d passed, %d failed%n", vectors.size() - failed.size(), failed.size());
        return failed.isEmpty() ? 0 : 1;
    }

    public static void main(String[] args) throws IOException {
        if (args.length == 2 && args[0].equals("--vectors")) System.exit(runVectors(args[1]));
        Map<String, String> environment = System.getenv();
        List<String> secrets = Stream.of("WEBHOOK_SECRET", "WEBHOOK_SECRET_OLD")
                .map(name -> environment.getOrDefault(name, "")).filter(secret -> !secret.isEmpty()).toList();
        if (secrets.isEmpty()) {
            System.err.println("Set WEBHOOK_SECRET to the secret that deliveries are signed with.");
            System.exit(2);
        }
        if (String.join("", secrets).contains("\uFFFD")) {
            System.err.println("A non-ASCII secret must be UTF-8: set LC_ALL=C.UTF-8 for this program.");
            System.exit(2);
        }
        System.setProperty("sun.net.httpserver.maxReqTime", IDLE_TIMEOUT_S); // close connections of slow senders
        int port = Integer.parseInt(environment.getOrDefault("PORT", "9000"));
        HttpServer server = HttpServer.create(new InetSocketAddress(InetAddress.getLoopbackAddress(), port), 0);
        Receiver receiver = new Receiver(secrets, Integer.parseInt(environment.getOrDefault("RATE_PER_MINUTE", "0")));
        server.createContext("/", receiver::handle);
        server.setExecutor(Executors.newFixedThreadPool(32));
        server.start();
        System.out.println("Listening on http://127.0.0.1:" + server.getAddress().getPort());
    }

    /** Parses JSON, because Java's standard library does not; in an application, use your framework's parser. */
    static final class Json {
        private static final int MAX_DEPTH = 100;
        private final String text;
        private int at = 0;
        private int depth = 0;

        Json(String text) {
            this.text = text;
        }

        /** Return maps, lists, strings, doubles, booleans and null. Throws IllegalArgumentException for anything else. */
        Object read() {
            Object value = value();
            if (peek() != 0) throw wrong();
            return value;
        }

        private Object value() {
            switch (peek()) {
                case '{': return object();
                case '[': return array();
                case '"': return string();
                case 't': return word("true", true);
                case 'f': return word("false", false);
                case 'n': return word("null", null);
                default: return number();
            }
        }

        private Map<String, Object> object() {
            Map<String, Object> members = new LinkedHashMap<>();
            open();
            for (char end = ','; end == ','; end = next(",}")) {
                if (members.isEmpty() && peek() == '}') continue;
                if (peek() != '"') throw wrong();
                String name = string();
                next(":");
                members.put(name, value());
            }
            depth--;
            return members;
        }

        private List<Object> array() {
            List<Object> items = new ArrayList<>();
            open();
            for (char end = ','; end == ','; end = next(",]")) {
                if (items.isEmpty() && peek() == ']') continue;
                items.add(value());
            }
            depth--;
            return items;
        }

        private String string() {
            StringBuilder found = new StringBuilder();
            for (at++; at < text.length() && text.charAt(at) != '"'; at++) {
                if (text.charAt(at) < ' ') throw wrong();
                found.append(text.charAt(at) == '\\' ? escaped() : text.charAt(at));
            }
            if (at++ >= text.length()) throw wrong();
            return found.toString();
        }

        private char escaped() {
            char letter = ++at < text.length() ? text.charAt(at) : 0;
            int known = "\"\\/bfnrt".indexOf(letter);
            if (known >= 0) return "\"\\/\b\f\n\r\t".charAt(known);
            String digits = text.substring(at, Math.min(at + 5, text.length()));
            if (!digits.matches("u[0-9A-Fa-f]{4}")) throw wrong();
            at += 4;
            return (char) Integer.parseInt(digits.substring(1), 16);
        }

        private Double number() {
            int from = at;
            while (at < text.length() && "+-.0123456789Ee".indexOf(text.charAt(at)) >= 0) at++;
            String digits = text.substring(from, at);
            if (!digits.matches("-?(0|[1-9][0-9]*)(\\.[0-9]+)?([Ee][+-]?[0-9]+)?")) throw wrong();
            return Double.valueOf(digits);
        }

        private Object word(String word, Object value) {
            if (!text.startsWith(word, at)) throw wrong();
            at += word.length();
            return value;
        }

        private void open() {
            at++;
            if (++depth > MAX_DEPTH) throw wrong();
        }

        private char next(String expected) {
            char found = peek();
            if (found == 0 || expected.indexOf(found) < 0) throw wrong();
            at++;
            return found;
        }

        /** Return the next non-space character, or 0 at the end. */
        private char peek() {
            while (at < text.length() && " \t\r\n".indexOf(text.charAt(at)) >= 0) at++;
            return at < text.length() ? text.charAt(at) : 0;
        }

        private IllegalArgumentException wrong() {
            return new IllegalArgumentException("Not valid JSON.");
        }
    }
}
