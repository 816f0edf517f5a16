/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * The reader of scenario files that the stand-ins share. See json.h.
 */
#include "json.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_DEPTH 64

struct reader {
    const char *start;
    const char *at;
    const char *problem;
};

static struct json *read_value(struct reader *reader, int depth);

static void skip_space(struct reader *reader)
{
    while (*reader->at == ' ' || *reader->at == '\t' || *reader->at == '\n' || *reader->at == '\r') {
        reader->at++;
    }
}

static struct json *new_node(enum json_type type)
{
    struct json *node = calloc(1, sizeof(*node));
    if (node != NULL) {
        node->type = type;
    }
    return node;
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9') {
        return c - '0';
    }
    c = (char)tolower((unsigned char)c);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* A code point of the form XXXX after \u, as UTF-8. Surrogate pairs are refused: no scenario has any. */
static bool read_code_point(struct reader *reader, char **out)
{
    unsigned value = 0;
    for (int i = 0; i < 4; i++) {
        int digit = hex_digit(*reader->at);
        if (digit < 0) {
            return false;
        }
        value = value * 16 + (unsigned)digit;
        reader->at++;
    }
    if (value == 0 || (value >= 0xd800 && value <= 0xdfff)) {
        return false;
    }
    if (value < 0x80) {
        *(*out)++ = (char)value;
    } else if (value < 0x800) {
        *(*out)++ = (char)(0xc0 | value >> 6);
        *(*out)++ = (char)(0x80 | (value & 0x3f));
    } else {
        *(*out)++ = (char)(0xe0 | value >> 12);
        *(*out)++ = (char)(0x80 | (value >> 6 & 0x3f));
        *(*out)++ = (char)(0x80 | (value & 0x3f));
    }
    return true;
}

static char *read_string(struct reader *reader)
{
    reader->at++;
    const char *end = reader->at;
    while (*end != '"') {
        if (*end == '\0') {
            reader->problem = "a string does not end";
            return NULL;
        }
        end += end[0] == '\\' && end[1] != '\0' ? 2 : 1;
    }
    char *text = malloc((size_t)(end - reader->at) + 1);
    char *out = text;
    while (text != NULL && reader->at < end) {
        if (*reader->at != '\\') {
            *out++ = *reader->at++;
            continue;
        }
        reader->at++;
        char c = *reader->at++;
        const char *plain = "\"\\/bfnrt", *meant = "\"\\/\b\f\n\r\t";
        const char *escape = strchr(plain, c);
        if (c == 'u' ? !read_code_point(reader, &out) : escape == NULL) {
            reader->problem = "a bad escape in a string";
            free(text);
            return NULL;
        }
        if (c != 'u') {
            *out++ = meant[escape - plain];
        }
    }
    if (text == NULL) {
        reader->problem = "out of memory";
        return NULL;
    }
    *out = '\0';
    reader->at = end + 1;
    return text;
}

static struct json *read_container(struct reader *reader, int depth, enum json_type type, char closing)
{
    struct json *node = new_node(type);
    struct json **tail = node != NULL ? &node->first : NULL;
    reader->at++;
    skip_space(reader);
    if (node != NULL && *reader->at == closing) {
        reader->at++;
        return node;
    }
    while (node != NULL) {
        char *key = NULL;
        skip_space(reader);
        if (type == JSON_OBJECT) {
            if (*reader->at != '"') {
                reader->problem = "an object wants a name in quotes";
                break;
            }
            key = read_string(reader);
            skip_space(reader);
            if (key == NULL || *reader->at != ':') {
                reader->problem = reader->problem ? reader->problem : "a name wants a colon after it";
                free(key);
                break;
            }
            reader->at++;
        }
        struct json *child = read_value(reader, depth + 1);
        if (child == NULL) {
            free(key);
            break;
        }
        child->key = key;
        *tail = child;
        tail = &child->next;
        node->count++;
        skip_space(reader);
        if (*reader->at == closing) {
            reader->at++;
            return node;
        }
        if (*reader->at != ',') {
            reader->problem = "a comma or a closing bracket is missing";
            break;
        }
        reader->at++;
    }
    json_free(node);
    return NULL;
}

static struct json *read_number(struct reader *reader)
{
    char *end = NULL, *whole_end = NULL;
    double number = strtod(reader->at, &end);
    long long integer = strtoll(reader->at, &whole_end, 10);
    if (end == reader->at || !isfinite(number)) {
        reader->problem = "a value is none of JSON's";
        return NULL;
    }
    struct json *node = new_node(JSON_NUMBER);
    if (node != NULL) {
        node->number = number;
        node->integer = whole_end == end ? integer : (long long)number;
    }
    reader->at = end;
    return node;
}

static struct json *read_value(struct reader *reader, int depth)
{
    static const struct { const char *word; enum json_type type; int value; } words[] = {
        {"null", JSON_NULL, 0}, {"true", JSON_BOOL, 1}, {"false", JSON_BOOL, 0},
    };
    if (depth > MAX_DEPTH) {
        reader->problem = "too deep";
        return NULL;
    }
    skip_space(reader);
    if (*reader->at == '{') {
        return read_container(reader, depth, JSON_OBJECT, '}');
    }
    if (*reader->at == '[') {
        return read_container(reader, depth, JSON_ARRAY, ']');
    }
    if (*reader->at == '"') {
        char *text = read_string(reader);
        struct json *node = text != NULL ? new_node(JSON_STRING) : NULL;
        if (node == NULL) {
            free(text);
            return NULL;
        }
        node->text = text;
        return node;
    }
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        size_t length = strlen(words[i].word);
        if (strncmp(reader->at, words[i].word, length) == 0) {
            struct json *node = new_node(words[i].type);
            reader->at += length;
            if (node != NULL) {
                node->integer = words[i].value;
                node->number = words[i].value;
            }
            return node;
        }
    }
    return read_number(reader);
}

struct json *json_parse(const char *text, char *error, size_t error_size)
{
    struct reader reader = {text, text, NULL};
    struct json *node = read_value(&reader, 0);
    skip_space(&reader);
    if (node != NULL && *reader.at != '\0') {
        reader.problem = "something follows after the end";
        json_free(node);
        node = NULL;
    }
    if (node == NULL) {
        int line = 1;
        for (const char *c = reader.start; c < reader.at; c++) {
            line += *c == '\n';
        }
        snprintf(error, error_size, "line %d: %s", line, reader.problem ? reader.problem : "out of memory");
    }
    return node;
}

void json_free(struct json *node)
{
    while (node != NULL) {
        struct json *next = node->next;
        json_free(node->first);
        free(node->key);
        free(node->text);
        free(node);
        node = next;
    }
}

const struct json *json_at(const struct json *array, int index)
{
    const struct json *child = array != NULL ? array->first : NULL;
    while (child != NULL && index-- > 0) {
        child = child->next;
    }
    return child != NULL && child->type != JSON_NULL ? child : NULL;
}

const struct json *json_get(const struct json *node, const char *path)
{
    while (node != NULL && *path != '\0') {
        size_t length = strcspn(path, ".");
        if (node->type == JSON_ARRAY) {
            node = json_at(node, atoi(path));
        } else {
            const struct json *child = node->type == JSON_OBJECT ? node->first : NULL;
            while (child != NULL && (strncmp(child->key, path, length) != 0 || child->key[length] != '\0')) {
                child = child->next;
            }
            node = child;
        }
        path += length + (path[length] == '.');
    }
    return node != NULL && node->type != JSON_NULL ? node : NULL;
}

long long json_integer(const struct json *node, const char *path, long long fallback)
{
    node = json_get(node, path);
    return node != NULL && (node->type == JSON_NUMBER || node->type == JSON_BOOL) ? node->integer : fallback;
}

double json_number(const struct json *node, const char *path, double fallback)
{
    node = json_get(node, path);
    return node != NULL && node->type == JSON_NUMBER ? node->number : fallback;
}

const char *json_text(const struct json *node, const char *path, const char *fallback)
{
    node = json_get(node, path);
    return node != NULL && node->type == JSON_STRING ? node->text : fallback;
}

bool json_true(const struct json *node, const char *path)
{
    node = json_get(node, path);
    return node != NULL && (node->type == JSON_BOOL || node->type == JSON_NUMBER) && node->number != 0;
}

int json_length(const struct json *node, const char *path)
{
    node = json_get(node, path);
    return node != NULL ? node->count : 0;
}
