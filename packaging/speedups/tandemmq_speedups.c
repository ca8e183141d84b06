/* The inner part of a block of sends, the splitting of frames, and the reading of a slave's records, in C.
 *
 * Each function has a twin in the package tandemmq, which is its definition. A function returns what the twin returns,
 * or None for input that it does not handle: then the caller runs the twin. It handles plain input only. JSON is
 * handled without white space, unknown or repeated keys, escapes other than \u0001 and \u0002, and text beyond ASCII.
 * Policy (which topics, permissions, limits, names of properties) stays in Python.
 *
 * Invariants: nothing is read or written outside the objects passed and the buffers allocated here; no recursion; no
 *             state between calls; the only exceptions are MemoryError, and TypeError for arguments of wrong types.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>
#include <string.h>

#define INTERFACE 2                  /* as in protocol/speedups.py: rises when a signature or its meaning changes */
#define COUNT_MAX (1 << 20)          /* of items in one call */
#define TOTAL_MAX ((int64_t)1 << 30) /* of bytes in one call */
#define RECORD_HEAD_BYTES 48         /* up to the born host */
#define RECORD_BYTES_MIN 91
#define RUN_COUNT_MAX 256            /* of records in one call of read_records */
#define ENTRY_BYTES 20
#define QUEUES_MAX 64
#define KEY_BYTES_MAX 65535
#define DECIMAL_BYTES_MAX 20

/* A view of bytes that something else owns. */
typedef struct {
    const char *at, *end;
} Span;

static size_t span_size(Span span) { return (size_t)(span.end - span.at); }

static int equals(Span span, const char *text)
{
    size_t size = strlen(text);
    return span_size(span) == size && memcmp(span.at, text, size) == 0;
}

static uint32_t read_u32(const char *at)
{
    const unsigned char *byte = (const unsigned char *)at;
    return (uint32_t)byte[0] << 24 | (uint32_t)byte[1] << 16 | (uint32_t)byte[2] << 8 | byte[3];
}

static uint64_t read_u64(const char *at) { return (uint64_t)read_u32(at) << 32 | read_u32(at + 4); }

static char *put_u32(char *to, uint32_t value)
{
    to[0] = (char)(value >> 24);
    to[1] = (char)(value >> 16);
    to[2] = (char)(value >> 8);
    to[3] = (char)value;
    return to + 4;
}

static char *put_u64(char *to, uint64_t value) { return put_u32(put_u32(to, (uint32_t)(value >> 32)), (uint32_t)value); }

static char *put_bytes(char *to, const char *from, size_t size)
{
    if (size)
        memcpy(to, from, size);
    return to + size;
}

/* Reads an int of Python; returns 0 for other objects and values out of the range. */
static int get_int(PyObject *object, int64_t min, int64_t max, int64_t *value)
{
    int overflow;
    if (!PyLong_CheckExact(object))
        return 0;
    *value = PyLong_AsLongLongAndOverflow(object, &overflow);
    return !overflow && *value >= min && *value <= max;
}

/* A sequence argument as a list or tuple with `count` items. */
typedef struct {
    PyObject *fast;
    PyObject **items;
} Column;

static void drop_columns(Column *columns, int number)
{
    for (int index = 0; index < number; index++)
        Py_CLEAR(columns[index].fast);
}

/* Opens the sequences. Returns their common length; -1 with an exception, -2 if they are of other types, or their lengths
 * differ or are out of 1..COUNT_MAX. The caller drops the columns in any case. */
static Py_ssize_t open_columns(PyObject **sequences, Column *columns, int number)
{
    Py_ssize_t count = -2;
    for (int index = 0; index < number; index++)
        columns[index].fast = NULL;
    for (int index = 0; index < number; index++) {
        PyObject *sequence = sequences[index]; /* of a type that runs no code of others while it is read */
        if (!PyList_CheckExact(sequence) && !PyTuple_CheckExact(sequence) && !PyRange_Check(sequence))
            return -2;
        if (!(columns[index].fast = PySequence_Fast(sequence, "")))
            return -1;
        columns[index].items = PySequence_Fast_ITEMS(columns[index].fast);
        Py_ssize_t size = PySequence_Fast_GET_SIZE(columns[index].fast);
        if (size < 1 || size > COUNT_MAX || (index && size != count))
            return -2;
        count = size;
    }
    return count;
}

/* Splits up to the first frame that is incomplete or invalid. */
static PyObject *split_frames(PyObject *module, PyObject *args)
{
    PyObject *piece;
    Py_ssize_t position, frame_max, header_max;
    (void)module;
    if (!PyArg_ParseTuple(args, "Snnn", &piece, &position, &frame_max, &header_max))
        return NULL;
    const char *bytes = PyBytes_AS_STRING(piece);
    Py_ssize_t end = PyBytes_GET_SIZE(piece);
    PyObject *frames = PyList_New(0);
    if (!frames)
        return NULL;
    while (position >= 0 && position <= end && end - position >= 8) {
        int64_t length = (int32_t)read_u32(bytes + position);
        uint32_t mark = read_u32(bytes + position + 4), kind = mark >> 24;
        int64_t header_size = mark & 0xFFFFFF;
        if (kind > 1 || header_size > header_max || length < 4 || length > frame_max - 4 || header_size > length - 4 ||
            length > end - position - 4)
            break;
        const char *header = bytes + position + 8;
        PyObject *frame = Py_BuildValue("(y#y#i)", header, (Py_ssize_t)header_size, header + header_size,
                                        (Py_ssize_t)(length - 4 - header_size), (int)kind);
        if (!frame || PyList_Append(frames, frame) < 0) {
            Py_XDECREF(frame);
            Py_DECREF(frames);
            return NULL;
        }
        Py_DECREF(frame);
        position += 4 + (Py_ssize_t)length;
    }
    return Py_BuildValue("(Nn)", frames, position);
}

/* The headers of sends. */

/* The values that tables need of the properties of a message. */
typedef struct {
    Span unique_key, keys;
    int32_t tag_hash;
} Pairs;

typedef struct {
    int64_t opaque, queue_id, flag, born_at_ms, sys_flag;
    Span topic;
    Span properties; /* in the arena, closed */
    Pairs pairs;
    int was_closed;
} Send;

enum { GROUP, TOPIC, DEFAULT_TOPIC, QUEUE_COUNT, QUEUE_ID, SYS_FLAG, BORN_AT, FLAG, PROPERTIES, RETRIES, UNIT, RETRIES_MAX, BATCH, BROKER, FIELD_COUNT };
#define REQUIRED_FIELDS ((1u << RETRIES) - 1)

static const char *const FIELD_NAMES[FIELD_COUNT] = {
    "producerGroup", "topic", "defaultTopic", "defaultTopicQueueNums", "queueId", "sysFlag", "bornTimestamp",
    "flag", "properties", "reconsumeTimes", "unitMode", "maxReconsumeTimes", "batch", "bname",
};

static int take(Span *from, char byte)
{
    if (from->at < from->end && *from->at == byte) {
        from->at++;
        return 1;
    }
    return 0;
}

/* Takes a string of printable ASCII without escapes. */
static int take_text(Span *from, Span *text)
{
    if (!take(from, '"'))
        return 0;
    const char *at = from->at;
    while (at < from->end && *at != '"') {
        unsigned char byte = (unsigned char)*at++;
        if (byte < 0x20 || byte > 0x7F || byte == '\\')
            return 0;
    }
    if (at == from->end)
        return 0;
    *text = (Span){from->at, at};
    from->at = at + 1;
    return 1;
}

/* Takes a whole number in the one form that Java writes. */
static int take_number(Span *from, int64_t min, int64_t max, int64_t *value)
{
    const char *at = from->at;
    int is_negative = at < from->end && *at == '-';
    const char *digits = at += is_negative;
    int64_t sum = 0;
    while (at < from->end && *at >= '0' && *at <= '9' && at - digits < 18)
        sum = sum * 10 + (*at++ - '0');
    if (at == digits || (*digits == '0' && (at - digits > 1 || is_negative)))
        return 0;
    if (at < from->end && ((*at >= '0' && *at <= '9') || *at == '.' || *at == 'e' || *at == 'E'))
        return 0;
    *value = is_negative ? -sum : sum;
    from->at = at;
    return *value >= min && *value <= max;
}

static int take_quoted_number(Span *from, int64_t min, int64_t max, int64_t *value)
{
    Span text;
    return take_text(from, &text) && take_number(&text, min, max, value) && text.at == text.end;
}

static int take_quoted_false(Span *from)
{
    Span text;
    return take_text(from, &text) && equals(text, "false");
}

/* Takes the properties and writes them to `arena`, with a last separator; sets `arena` to the end of what it wrote, which
 * is at most as long as the JSON text. */
static int take_properties(Span *from, Send *send, char **arena)
{
    if (!take(from, '"'))
        return 0;
    char *to = *arena;
    const char *at = from->at;
    for (;;) {
        if (at == from->end)
            return 0;
        char byte = *at++;
        if (byte == '"')
            break;
        if ((unsigned char)byte < 0x20 || (unsigned char)byte > 0x7F)
            return 0;
        if (byte == '\\') {
            if (from->end - at < 5 || memcmp(at, "u000", 4) != 0 || (at[4] != '1' && at[4] != '2'))
                return 0;
            byte = (char)(at[4] - '0');
            at += 5;
        }
        *to++ = byte;
    }
    if (to == *arena)
        return 0;
    send->was_closed = to[-1] == 2;
    if (!send->was_closed)
        *to++ = 2; /* in place of the two quotes */
    send->properties = (Span){*arena, to};
    *arena = to;
    from->at = at;
    return 1;
}

static int32_t java_hash(Span text)
{
    uint32_t sum = 0;
    for (const char *at = text.at; at < text.end; at++)
        sum = sum * 31 + (unsigned char)*at;
    return (int32_t)sum;
}

static int is_ascii(Span text)
{
    unsigned char bits = 0;
    for (const char *at = text.at; at < text.end; at++)
        bits |= (unsigned char)*at;
    return bits < 0x80;
}

/* Finds the unique key, the tags and the keys. Every pair must have a name and a value; these names are there once at
 * most and have values in ASCII. A message with several queue offsets is left to the twin. */
static int read_pairs(Span text, Pairs *pairs)
{
    Span none = {NULL, NULL}, tags = none;
    pairs->unique_key = pairs->keys = none;
    for (const char *at = text.at; at < text.end;) {
        const char *end = memchr(at, 2, (size_t)(text.end - at));
        end = end ? end : text.end;
        const char *mark = memchr(at, 1, (size_t)(end - at));
        if (!mark || mark == at || mark + 1 == end || memchr(mark + 1, 1, (size_t)(end - mark - 1)))
            return 0;
        Span name = {at, mark}, value = {mark + 1, end};
        Span *found = equals(name, "UNIQ_KEY") ? &pairs->unique_key
                      : equals(name, "TAGS")   ? &tags
                      : equals(name, "KEYS")   ? &pairs->keys
                                               : NULL;
        if (found ? found->at || !is_ascii(value) : mark - at > 6 && memcmp(at, "INNER_", 6) == 0)
            return 0;
        if (found)
            *found = value;
        at = end < text.end ? end + 1 : end;
    }
    pairs->tag_hash = java_hash(tags);
    return 1;
}

static int find_field(Span name, int is_v2)
{
    if (is_v2)
        return span_size(name) == 1 && *name.at >= 'a' && *name.at <= 'n' ? *name.at - 'a' : -1;
    for (int field = 0; field < FIELD_COUNT; field++)
        if (equals(name, FIELD_NAMES[field]))
            return field;
    return -1;
}

static int take_field(Span *from, int field, Send *send, char **arena)
{
    Span text;
    int64_t number;
    switch (field) {
    case GROUP:
    case DEFAULT_TOPIC:
    case BROKER:
        return take_text(from, &text);
    case TOPIC:
        return take_text(from, &send->topic) && span_size(send->topic) > 0;
    case QUEUE_COUNT:
    case RETRIES_MAX:
        return take_quoted_number(from, INT32_MIN, INT32_MAX, &number);
    case QUEUE_ID:
        return take_quoted_number(from, INT32_MIN, INT32_MAX, &send->queue_id);
    case SYS_FLAG:
        return take_quoted_number(from, INT32_MIN, INT32_MAX, &send->sys_flag);
    case BORN_AT:
        return take_quoted_number(from, INT64_MIN, INT64_MAX, &send->born_at_ms);
    case FLAG:
        return take_quoted_number(from, INT32_MIN, INT32_MAX, &send->flag);
    case PROPERTIES:
        return take_properties(from, send, arena) && read_pairs(send->properties, &send->pairs) && send->pairs.unique_key.at;
    case RETRIES:
        return take_quoted_number(from, 0, 0, &number);
    case UNIT:
    case BATCH:
        return take_quoted_false(from);
    default:
        return 0;
    }
}

static int take_fields(Span *from, int is_v2, Send *send, char **arena)
{
    unsigned seen = 0;
    Span name;
    if (!take(from, '{'))
        return 0;
    do {
        if (!take_text(from, &name) || !take(from, ':'))
            return 0;
        int field = find_field(name, is_v2);
        if (field < 0 || seen >> field & 1 || !take_field(from, field, send, arena))
            return 0;
        seen |= 1u << field;
    } while (take(from, ','));
    return take(from, '}') && (seen & REQUIRED_FIELDS) == REQUIRED_FIELDS;
}

static int take_header(Span from, int64_t code, int is_v2, Send *send, char **arena)
{
    static const char *const names[] = {"code", "opaque", "flag", "version", "extFields", "language", "serializeTypeCurrentRPC"};
    enum { CODE, OPAQUE, COMMAND_FLAG, VERSION, FIELDS, LANGUAGE, KIND, NAME_COUNT };
    const int64_t min[] = {code, INT32_MIN, 0, INT32_MIN}, max[] = {code, INT32_MAX, 0, INT32_MAX};
    int64_t numbers[FIELDS] = {0};
    unsigned seen = 0;
    Span name, text;
    if (!take(&from, '{'))
        return 0;
    do {
        int index = 0;
        if (!take_text(&from, &name) || !take(&from, ':'))
            return 0;
        while (index < NAME_COUNT && !equals(name, names[index]))
            index++;
        if (index == NAME_COUNT || seen >> index & 1)
            return 0;
        seen |= 1u << index;
        if (index < FIELDS ? !take_number(&from, min[index], max[index], &numbers[index])
                           : index == FIELDS ? !take_fields(&from, is_v2, send, arena) : !take_text(&from, &text))
            return 0;
    } while (take(&from, ','));
    send->opaque = numbers[OPAQUE];
    return take(&from, '}') && from.at == from.end && seen >> CODE & 1 && seen >> FIELDS & 1;
}

/* Returns the header of a frame (header, body, kind) with a JSON header and a body; NULL for other objects. */
static PyObject *header_of(PyObject *frame)
{
    int64_t kind;
    if (!PyTuple_CheckExact(frame) || PyTuple_GET_SIZE(frame) != 3)
        return NULL;
    PyObject *header = PyTuple_GET_ITEM(frame, 0), *body = PyTuple_GET_ITEM(frame, 1);
    if (!PyBytes_CheckExact(header) || !PyBytes_CheckExact(body) || !PyBytes_GET_SIZE(body))
        return NULL;
    return get_int(PyTuple_GET_ITEM(frame, 2), 0, 0, &kind) ? header : NULL;
}

/* Returns 1 if all frames are sends of one form, 0 if not, -1 without memory. */
static int read_headers(PyObject **frames, Py_ssize_t count, int64_t code, int is_v2, Send *sends, char *arena)
{
    for (Py_ssize_t index = 0; index < count; index++) {
        Send *send = sends + index;
        PyObject *header = header_of(frames[index]);
        Span text = {PyBytes_AS_STRING(header), PyBytes_AS_STRING(header) + PyBytes_GET_SIZE(header)};
        if (!take_header(text, code, is_v2, send, &arena))
            return 0;
        if (send->sys_flag != sends->sys_flag || send->was_closed != sends->was_closed ||
            span_size(send->topic) != span_size(sends->topic) ||
            memcmp(send->topic.at, sends->topic.at, span_size(send->topic)) != 0)
            return 0;
    }
    return 1;
}

static PyObject *new_text(Span span)
{
    return PyUnicode_DecodeASCII(span.at ? span.at : "", (Py_ssize_t)span_size(span), NULL);
}

static PyObject *joined(Span first, Span second)
{
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(span_size(first) + span_size(second)));
    if (bytes)
        put_bytes(put_bytes(PyBytes_AS_STRING(bytes), first.at, span_size(first)), second.at, span_size(second));
    return bytes;
}

enum { OPAQUES, QUEUE_IDS, BORN_TIMES, FLAGS, BODIES, PAIRS, UNIQUE_KEYS, TAG_HASHES, KEYS, COLUMN_COUNT };

static PyObject *make_columns(PyObject **frames, Py_ssize_t count, const Send *sends, Span text, Span added)
{
    PyObject *lists[COLUMN_COUNT] = {NULL};
    int is_whole = 1;
    for (int column = 0; column < COLUMN_COUNT && is_whole; column++)
        is_whole = (lists[column] = PyList_New(count)) != NULL;
    for (Py_ssize_t index = 0; index < count && is_whole; index++) {
        const Send *send = sends + index;
        PyObject *values[COLUMN_COUNT] = {
            PyLong_FromLongLong(send->opaque),  PyLong_FromLongLong(send->queue_id),
            PyLong_FromLongLong(send->born_at_ms), PyLong_FromLongLong(send->flag),
            Py_NewRef(PyTuple_GET_ITEM(frames[index], 1)), joined(send->properties, added),
            new_text(send->pairs.unique_key),   PyLong_FromLong(send->pairs.tag_hash),
            new_text(send->pairs.keys),
        };
        for (int column = 0; column < COLUMN_COUNT; column++) {
            is_whole &= values[column] != NULL;
            PyList_SET_ITEM(lists[column], index, values[column]);
        }
    }
    if (!is_whole) {
        for (int column = 0; column < COLUMN_COUNT; column++)
            Py_XDECREF(lists[column]);
        return NULL;
    }
    return Py_BuildValue("(NLNNNNNNNNNN)", new_text(sends->topic), (long long)sends->sys_flag, new_text(text), lists[OPAQUES],
                         lists[QUEUE_IDS], lists[BORN_TIMES], lists[FLAGS], lists[BODIES], lists[PAIRS], lists[UNIQUE_KEYS],
                         lists[TAG_HASHES], lists[KEYS]);
}

static PyObject *read_sends(PyObject *module, PyObject *args)
{
    PyObject *frames_object, *result = NULL;
    long long code;
    int is_v2;
    Span added;
    Py_ssize_t added_size, header_bytes = 0;
    Column frames;
    (void)module;
    if (!PyArg_ParseTuple(args, "LpOy#", &code, &is_v2, &frames_object, &added.at, &added_size))
        return NULL;
    added.end = added.at + added_size;
    Py_ssize_t count = open_columns(&frames_object, &frames, 1);
    int is_good = count > 0;
    for (Py_ssize_t index = 0; index < count && is_good; index++) {
        PyObject *header = header_of(frames.items[index]);
        is_good = header && PyBytes_GET_SIZE(header) < TOTAL_MAX - header_bytes;
        header_bytes += is_good ? PyBytes_GET_SIZE(header) : 0;
    }
    if (is_good) {
        Send *sends = PyMem_New(Send, (size_t)count);
        char *arena = PyMem_Malloc((size_t)header_bytes + 1);
        if (!sends || !arena)
            PyErr_NoMemory();
        else if (read_headers(frames.items, count, code, is_v2, sends, arena))
            result = make_columns(frames.items, count, sends, (Span){arena, sends[count - 1].properties.end}, added);
        else
            is_good = 0;
        PyMem_Free(sends);
        PyMem_Free(arena);
    }
    drop_columns(&frames, 1);
    if (!is_good && count != -1)
        Py_RETURN_NONE;
    return result;
}

enum { SIZES, LOG_OFFSETS, QUEUE_OFFSETS, RECORD_QUEUES, RECORD_FLAGS, RECORD_TIMES, SUMS, RECORD_BODIES, RECORD_PAIRS, RECORD_COLUMNS };

typedef struct {
    uint32_t magic, sys_flag;
    Span shared, topic;
} RecordForm;

/* Writes one record of exactly `size` bytes; returns 0, and writes nothing, if it has another size. */
static int put_record(char *to, const Column *columns, Py_ssize_t index, int64_t size, const RecordForm *form)
{
    static const int64_t ranges[][2] = {
        [LOG_OFFSETS] = {0, INT64_MAX},           [QUEUE_OFFSETS] = {INT64_MIN, INT64_MAX},
        [RECORD_QUEUES] = {INT32_MIN, INT32_MAX}, [RECORD_FLAGS] = {INT32_MIN, INT32_MAX},
        [RECORD_TIMES] = {INT64_MIN, INT64_MAX},  [SUMS] = {0, UINT32_MAX},
    };
    int64_t value[SUMS + 1];
    Py_buffer body;
    PyObject *pairs = columns[RECORD_PAIRS].items[index];
    for (int column = LOG_OFFSETS; column <= SUMS; column++)
        if (!get_int(columns[column].items[index], ranges[column][0], ranges[column][1], &value[column]))
            return 0;
    if (!PyBytes_CheckExact(pairs) || PyBytes_GET_SIZE(pairs) > 0xFFFF)
        return 0;
    PyObject *owner = columns[RECORD_BODIES].items[index]; /* no type whose buffer could run code */
    if (!PyBytes_CheckExact(owner) && !PyMemoryView_Check(owner))
        return 0;
    if (PyObject_GetBuffer(owner, &body, PyBUF_SIMPLE) < 0) {
        PyErr_Clear();
        return 0;
    }
    Py_ssize_t pairs_size = PyBytes_GET_SIZE(pairs);
    int64_t fixed = RECORD_HEAD_BYTES + (int64_t)span_size(form->shared) + 4 + (int64_t)span_size(form->topic) + 2;
    int is_good = body.len <= INT32_MAX && fixed + body.len + pairs_size == size;
    if (is_good) {
        to = put_u32(put_u32(to, (uint32_t)size), form->magic);
        to = put_u32(to, (uint32_t)value[SUMS] & 0x7FFFFFFF);
        to = put_u32(put_u32(to, (uint32_t)value[RECORD_QUEUES]), (uint32_t)value[RECORD_FLAGS]);
        to = put_u64(put_u64(to, (uint64_t)value[QUEUE_OFFSETS]), (uint64_t)value[LOG_OFFSETS]);
        to = put_u64(put_u32(to, form->sys_flag), (uint64_t)value[RECORD_TIMES]);
        to = put_bytes(to, form->shared.at, span_size(form->shared));
        to = put_bytes(put_u32(to, (uint32_t)body.len), body.buf, (size_t)body.len);
        to = put_bytes(to, form->topic.at, span_size(form->topic));
        *to++ = (char)(pairs_size >> 8);
        *to++ = (char)pairs_size;
        put_bytes(to, PyBytes_AS_STRING(pairs), (size_t)pairs_size);
    }
    PyBuffer_Release(&body);
    return is_good;
}

static PyObject *encode_records(PyObject *module, PyObject *args)
{
    PyObject *sequences[RECORD_COLUMNS], *records = NULL;
    Column columns[RECORD_COLUMNS];
    int magic, sys_flag;
    Py_ssize_t shared_size, topic_size;
    int64_t size, total = 0;
    RecordForm form;
    (void)module;
    if (!PyArg_ParseTuple(args, "(OOOOOOOOO)iiy#y#", &sequences[0], &sequences[1], &sequences[2], &sequences[3], &sequences[4],
                          &sequences[5], &sequences[6], &sequences[7], &sequences[8], &magic, &sys_flag, &form.shared.at,
                          &shared_size, &form.topic.at, &topic_size))
        return NULL;
    form.magic = (uint32_t)magic;
    form.sys_flag = (uint32_t)sys_flag;
    form.shared.end = form.shared.at + shared_size;
    form.topic.end = form.topic.at + topic_size;
    Py_ssize_t count = open_columns(sequences, columns, RECORD_COLUMNS);
    int is_good = count > 0;
    for (Py_ssize_t index = 0; index < count && is_good; index++) {
        is_good = get_int(columns[SIZES].items[index], 1, INT32_MAX, &size) && size < TOTAL_MAX - total;
        total += is_good ? size : 0;
    }
    if (is_good && (records = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)total))) {
        char *to = PyBytes_AS_STRING(records);
        for (Py_ssize_t index = 0; index < count && is_good; index++) {
            is_good = get_int(columns[SIZES].items[index], 1, PyBytes_AS_STRING(records) + total - to, &size) &&
                      put_record(to, columns, index, size, &form);
            to += is_good ? size : 0;
        }
        if (!is_good)
            Py_CLEAR(records);
    }
    drop_columns(columns, RECORD_COLUMNS);
    if (!is_good && count != -1)
        Py_RETURN_NONE;
    return records;
}

enum { ANSWER_OFFSETS, ANSWER_QUEUES, ANSWER_QUEUE_OFFSETS, ANSWER_KEYS, ANSWER_OPAQUES, ANSWER_COLUMNS };
#define PIECE_COUNT (ANSWER_COLUMNS + 1)

/* Returns the bytes of a text that JSON writes as it is. */
static int get_key(PyObject *object, Span *key)
{
    Py_ssize_t size;
    if (!PyUnicode_CheckExact(object) || !PyUnicode_IS_COMPACT_ASCII(object))
        return 0;
    size = PyUnicode_GET_LENGTH(object);
    key->at = PyUnicode_DATA(object);
    key->end = key->at + size;
    for (const char *at = key->at; at < key->end; at++)
        if (*at < 0x20 || *at > 0x7E || *at == '"' || *at == '\\')
            return 0;
    return size <= KEY_BYTES_MAX;
}

static char *put_decimal(char *to, int64_t value)
{
    char digits[DECIMAL_BYTES_MAX];
    char *at = digits + sizeof digits;
    uint64_t rest = value < 0 ? -(uint64_t)value : (uint64_t)value;
    do
        *--at = (char)('0' + rest % 10);
    while (rest /= 10);
    if (value < 0)
        *to++ = '-';
    return put_bytes(to, at, (size_t)(digits + sizeof digits - at));
}

/* Writes one answer; returns its end, or NULL for values that it does not handle. */
static char *put_answer(char *to, const Column *columns, Py_ssize_t index, const Span *pieces)
{
    int64_t value;
    Span key;
    char *frame = to;
    to += 8;
    for (int column = 0; column < ANSWER_COLUMNS; column++) {
        PyObject *item = columns[column].items[index];
        to = put_bytes(to, pieces[column].at, span_size(pieces[column]));
        if (column == ANSWER_KEYS) {
            if (!get_key(item, &key))
                return NULL;
            *to++ = '"';
            to = put_bytes(to, key.at, span_size(key));
            *to++ = '"';
            continue;
        }
        if (!get_int(item, column == ANSWER_OFFSETS ? 0 : INT64_MIN, INT64_MAX, &value))
            return NULL;
        if (column != ANSWER_OFFSETS)
            to = put_decimal(to, value);
        for (int shift = 60; shift >= 0 && column == ANSWER_OFFSETS; shift -= 4)
            *to++ = "0123456789ABCDEF"[(uint64_t)value >> shift & 15];
    }
    to = put_bytes(to, pieces[ANSWER_COLUMNS].at, span_size(pieces[ANSWER_COLUMNS]));
    uint32_t header_size = (uint32_t)(to - frame - 8);
    put_u32(put_u32(frame, header_size + 4), header_size);
    return to;
}

/* Returns the greatest number of bytes that the answers take, -1 for keys that are not handled. */
static int64_t answer_room(const Column *columns, Py_ssize_t count, const Span *pieces)
{
    int64_t each = 8 + 16 + 3 * (DECIMAL_BYTES_MAX + 1) + 2, room = 0;
    for (int piece = 0; piece < PIECE_COUNT; piece++)
        each += (int64_t)span_size(pieces[piece]);
    for (Py_ssize_t index = 0; index < count; index++) {
        Span key;
        if (!get_key(columns[ANSWER_KEYS].items[index], &key))
            return -1;
        room += each + (int64_t)span_size(key);
        if (room >= TOTAL_MAX)
            return -1;
    }
    return room;
}

static PyObject *render_answers(PyObject *module, PyObject *args)
{
    PyObject *sequences[ANSWER_COLUMNS], *answers = NULL;
    Column columns[ANSWER_COLUMNS];
    Span pieces[PIECE_COUNT];
    Py_ssize_t sizes[PIECE_COUNT];
    (void)module;
    if (!PyArg_ParseTuple(args, "(y#y#y#y#y#y#)OOOOO", &pieces[0].at, &sizes[0], &pieces[1].at, &sizes[1], &pieces[2].at,
                          &sizes[2], &pieces[3].at, &sizes[3], &pieces[4].at, &sizes[4], &pieces[5].at, &sizes[5],
                          &sequences[0], &sequences[1], &sequences[2], &sequences[3], &sequences[4]))
        return NULL;
    for (int piece = 0; piece < PIECE_COUNT; piece++)
        pieces[piece].end = pieces[piece].at + sizes[piece];
    Py_ssize_t count = open_columns(sequences, columns, ANSWER_COLUMNS);
    int64_t room = count > 0 ? answer_room(columns, count, pieces) : -1;
    int is_good = room >= 0;
    if (is_good && (answers = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)room))) {
        char *to = PyBytes_AS_STRING(answers);
        for (Py_ssize_t index = 0; index < count && to; index++)
            to = put_answer(to, columns, index, pieces);
        is_good = to != NULL;
        if (is_good)
            _PyBytes_Resize(&answers, to - PyBytes_AS_STRING(answers));
        else
            Py_CLEAR(answers);
    }
    drop_columns(columns, ANSWER_COLUMNS);
    if (!is_good && count != -1)
        Py_RETURN_NONE;
    return answers;
}

enum { ENTRY_QUEUES, ENTRY_OFFSETS, ENTRY_SIZES, ENTRY_TAGS, ENTRY_COLUMNS };

typedef struct {
    PyObject *queue; /* borrowed */
    PyObject *entries;
    char *to;
    Py_ssize_t count;
    int64_t end;
} Group;

/* Assigns each entry to the group of its queue; returns the number of groups, 0 for too many. */
static int assign_groups(const Column *columns, Py_ssize_t count, Group *groups, unsigned char *of_entry)
{
    int number = 0;
    for (Py_ssize_t index = 0; index < count; index++) {
        PyObject *queue = columns[ENTRY_QUEUES].items[index];
        int group = 0;
        while (group < number && groups[group].queue != queue)
            group++;
        if (group == number) {
            if (number == QUEUES_MAX)
                return 0;
            groups[number++] = (Group){.queue = queue};
        }
        groups[group].count++;
        of_entry[index] = (unsigned char)group;
    }
    return number;
}

static int put_entry(Group *group, const Column *columns, Py_ssize_t index)
{
    int64_t offset, size, tag;
    if (!get_int(columns[ENTRY_OFFSETS].items[index], 0, INT64_MAX - INT32_MAX, &offset) ||
        !get_int(columns[ENTRY_SIZES].items[index], 0, INT32_MAX, &size) ||
        !get_int(columns[ENTRY_TAGS].items[index], INT64_MIN, INT64_MAX, &tag))
        return 0;
    group->to = put_u64(put_u32(put_u64(group->to, (uint64_t)offset), (uint32_t)size), (uint64_t)tag);
    group->end = offset + size;
    return 1;
}

/* Returns a list of (queue, entries, end); NULL with an exception, or without one for values that are not handled. */
static PyObject *pack_groups(const Column *columns, Py_ssize_t count, Group *groups, int number, const unsigned char *of_entry)
{
    int is_good = 1;
    for (int group = 0; group < number && is_good; group++) {
        groups[group].entries = PyBytes_FromStringAndSize(NULL, groups[group].count * ENTRY_BYTES);
        is_good = groups[group].entries != NULL;
        groups[group].to = is_good ? PyBytes_AS_STRING(groups[group].entries) : NULL;
    }
    for (Py_ssize_t index = 0; index < count && is_good; index++)
        is_good = put_entry(groups + of_entry[index], columns, index);
    PyObject *packed = is_good ? PyList_New(number) : NULL;
    for (int group = 0; group < number && packed; group++) {
        PyObject *one = Py_BuildValue("(OOL)", groups[group].queue, groups[group].entries, (long long)groups[group].end);
        if (one)
            PyList_SET_ITEM(packed, group, one);
        else
            Py_CLEAR(packed);
    }
    for (int group = 0; group < number; group++)
        Py_XDECREF(groups[group].entries);
    return packed;
}

static PyObject *pack_entries(PyObject *module, PyObject *args)
{
    PyObject *sequences[ENTRY_COLUMNS], *packed = NULL;
    Column columns[ENTRY_COLUMNS];
    Group groups[QUEUES_MAX];
    (void)module;
    if (!PyArg_ParseTuple(args, "OOOO", &sequences[0], &sequences[1], &sequences[2], &sequences[3]))
        return NULL;
    Py_ssize_t count = open_columns(sequences, columns, ENTRY_COLUMNS);
    if (count > 0) {
        unsigned char *of_entry = PyMem_Malloc((size_t)count);
        int number = of_entry ? assign_groups(columns, count, groups, of_entry) : 0;
        if (number)
            packed = pack_groups(columns, count, groups, number, of_entry);
        else if (!of_entry)
            PyErr_NoMemory();
        PyMem_Free(of_entry);
    }
    drop_columns(columns, ENTRY_COLUMNS);
    if (!packed && !PyErr_Occurred())
        Py_RETURN_NONE;
    return packed;
}

/* The records of a slave. */

enum { RUN_SIZE, RUN_OFFSET, RUN_QUEUE, RUN_QUEUE_OFFSET, RUN_TAG, RUN_TIME, RUN_BODY, RUN_BODY_END, RUN_SUM, RUN_NUMBERS };
enum { RUN_UNIQUE_KEYS = RUN_NUMBERS, RUN_KEYS, RUN_TOPIC, RUN_COLUMNS };

typedef struct {
    int64_t numbers[RUN_NUMBERS];
    Span topic;
    Pairs pairs;
} Record;

/* Reads the record at `position`; returns 0 if it is not a plain one of that log offset that ends at `end` or before. */
static int read_record(const char *bytes, Py_ssize_t position, Py_ssize_t end, int64_t log_offset, Record *record)
{
    const uint32_t magic = 0xDAA320A7, unusual = 0x4 | 0x30; /* a transaction not committed, addresses of IPv6 */
    const char *at = bytes + position;
    if (end - position < RECORD_BYTES_MIN)
        return 0;
    int64_t size = (int32_t)read_u32(at), body = position + 88, body_size = (int32_t)read_u32(at + 84);
    int64_t rest = size - RECORD_BYTES_MIN - body_size; /* for topic and properties */
    if (size > end - position || read_u32(at + 4) != magic || read_u32(at + 36) & unusual ||
        read_u64(at + 28) != (uint64_t)log_offset || body_size < 1 || rest < 1)
        return 0;
    const char *topic_at = bytes + body + body_size + 1;
    int64_t topic_size = (unsigned char)topic_at[-1], pairs_size = rest - topic_size;
    if (topic_size < 1 || topic_size > INT8_MAX || pairs_size < 0 || pairs_size > INT16_MAX)
        return 0;
    const char *pairs_at = topic_at + topic_size + 2;
    Span topic = {topic_at, topic_at + topic_size};
    Pairs pairs;
    if (((unsigned char)pairs_at[-2] << 8 | (unsigned char)pairs_at[-1]) != pairs_size || !is_ascii(topic) ||
        !read_pairs((Span){pairs_at, pairs_at + pairs_size}, &pairs))
        return 0;
    *record = (Record){{size, log_offset, (int32_t)read_u32(at + 12), (int64_t)read_u64(at + 20), pairs.tag_hash,
                        (int64_t)read_u64(at + 56), body, body + body_size, (int32_t)read_u32(at + 8)}, topic, pairs};
    return 1;
}

static PyObject *make_run(const Record *records, Py_ssize_t count)
{
    PyObject *run = PyTuple_New(RUN_COLUMNS);
    for (int column = 0; column < RUN_COLUMNS && run; column++) {
        PyObject *values = column == RUN_TOPIC ? new_text(records->topic) : PyList_New(count);
        int is_whole = values != NULL;
        PyTuple_SET_ITEM(run, column, values);
        for (Py_ssize_t index = 0; index < count && column != RUN_TOPIC && is_whole; index++) {
            const Pairs *pairs = &records[index].pairs;
            PyObject *value = column < RUN_NUMBERS ? PyLong_FromLongLong(records[index].numbers[column])
                                                   : new_text(column == RUN_KEYS ? pairs->keys : pairs->unique_key);
            is_whole = value != NULL;
            PyList_SET_ITEM(values, index, value);
        }
        if (!is_whole)
            Py_CLEAR(run);
    }
    return run;
}

static PyObject *read_records(PyObject *module, PyObject *args)
{
    Py_buffer buffer;
    Py_ssize_t position, end, count = 0;
    long long log_offset, bytes_max;
    Record records[RUN_COUNT_MAX];
    (void)module;
    if (!PyArg_ParseTuple(args, "y*nnLL", &buffer, &position, &end, &log_offset, &bytes_max))
        return NULL;
    if (position >= 0 && position <= end && end <= buffer.len && log_offset >= 0 && log_offset <= INT64_MAX - buffer.len)
        while (count < RUN_COUNT_MAX && read_record(buffer.buf, position, end, log_offset, records + count)) {
            Span topic = records[count].topic, first = records->topic;
            int64_t size = records[count].numbers[RUN_SIZE];
            if (size > bytes_max || span_size(topic) != span_size(first) || memcmp(topic.at, first.at, span_size(first)) != 0)
                break;
            position += (Py_ssize_t)size;
            log_offset += size;
            count++;
        }
    PyObject *run = count ? make_run(records, count) : Py_NewRef(Py_None);
    PyBuffer_Release(&buffer);
    return run;
}

static PyMethodDef METHODS[] = {
    {"split_frames", split_frames, METH_VARARGS, "split_frames(piece, position, frame_bytes_max, header_bytes_max) -> (frames, position)"},
    {"read_sends", read_sends, METH_VARARGS, "read_sends(code, is_v2, frames, added) -> columns or None"},
    {"encode_records", encode_records, METH_VARARGS, "encode_records(columns, magic, sys_flag, shared, topic_field) -> bytes or None"},
    {"render_answers", render_answers, METH_VARARGS, "render_answers(pieces, log_offsets, queue_ids, queue_offsets, unique_keys, opaques) -> bytes or None"},
    {"pack_entries", pack_entries, METH_VARARGS, "pack_entries(queues, log_offsets, sizes, tag_hashes) -> [(queue, entries, end)] or None"},
    {"read_records", read_records, METH_VARARGS, "read_records(buffer, position, end, log_offset, record_bytes_max) -> columns or None"},
    {NULL, NULL, 0, NULL},
};

static int set_up(PyObject *module)
{
    return PyModule_AddStringConstant(module, "__version__", SPEEDUPS_VERSION) || PyModule_AddIntMacro(module, INTERFACE) ? -1 : 0;
}

static PyModuleDef_Slot SLOTS[] = {{Py_mod_exec, set_up}, {0, NULL}};

static struct PyModuleDef MODULE = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "tandemmq_speedups",
    .m_doc = "Parts of TandemMQ in C; each has a twin in Python.",
    .m_size = 0,
    .m_methods = METHODS,
    .m_slots = SLOTS,
};

PyMODINIT_FUNC PyInit_tandemmq_speedups(void) { return PyModuleDef_Init(&MODULE); }
