/* Raises KeyboardInterrupt before the n-th bytecode that is looked at, and before a later one.
 *
 * A trace function that is written in Python is switched off when it raises, so it cannot raise twice. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <frameobject.h>

static PyObject *masks;     /* code object -> bytes, 1 for each offset that counts; None: none does */
static PyObject *mask_of;   /* makes them */
static long long seen, first, second;
static PyObject *where;     /* list of (code, offset), where it was raised */

static PyObject *
mask(PyCodeObject *code)  /* borrowed */
{
    PyObject *found = PyDict_GetItemWithError(masks, (PyObject *)code);
    if (found == NULL && !PyErr_Occurred()) {
        found = PyObject_CallOneArg(mask_of, (PyObject *)code);
        if (found != NULL) {
            PyDict_SetItem(masks, (PyObject *)code, found);
            Py_DECREF(found);
        }
    }
    return found;
}

static int
trace(PyObject *self, PyFrameObject *frame, int what, PyObject *argument)
{
    if (what != PyTrace_CALL && what != PyTrace_OPCODE)
        return 0;
    PyCodeObject *code = PyFrame_GetCode(frame);
    PyObject *counts = mask(code);
    int result = 0;
    if (counts == NULL)
        result = -1;
    else if (counts != Py_None && what == PyTrace_CALL) {
        /* Python 3.13 traces bytecodes only where `f_trace` is set; nothing calls it here. */
        result = PyObject_SetAttrString((PyObject *)frame, "f_trace", Py_Ellipsis);
        if (result == 0)
            result = PyObject_SetAttrString((PyObject *)frame, "f_trace_opcodes", Py_True);
    }
    else if (counts != Py_None) {
        int offset = PyFrame_GetLasti(frame);
        if (offset >= 0 && offset < PyBytes_GET_SIZE(counts) && PyBytes_AS_STRING(counts)[offset]) {
            seen++;
            if (seen == first || seen == second) {
                PyObject *place = Py_BuildValue("(Oi)", code, offset);
                if (place != NULL) {
                    PyList_Append(where, place);
                    Py_DECREF(place);
                }
                PyErr_SetNone(PyExc_KeyboardInterrupt);
                result = -1;
            }
        }
    }
    Py_DECREF(code);
    return result;
}

static PyObject *
start(PyObject *self, PyObject *arguments)
{
    if (!PyArg_ParseTuple(arguments, "LL", &first, &second))
        return NULL;
    seen = 0;
    PyList_SetSlice(where, 0, PyList_GET_SIZE(where), NULL);
    PyEval_SetTrace(trace, NULL);
    Py_RETURN_NONE;
}

static PyObject *
stop(PyObject *self, PyObject *unused)
{
    PyEval_SetTrace(NULL, NULL);
    return Py_BuildValue("(LO)", seen, where);
}

static PyObject *
prepare(PyObject *self, PyObject *function)
{
    masks = PyDict_New();
    where = PyList_New(0);
    mask_of = Py_NewRef(function);
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"prepare", prepare, METH_O, "prepare(mask_of): mask_of(code) says which offsets count."},
    {"start", start, METH_VARARGS, "start(first, second): from here on, count the bytecodes, and raise at these."},
    {"stop", stop, METH_NOARGS, "stop(): how many there were, and where it was raised."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "opcodes", NULL, -1, methods};

PyMODINIT_FUNC
PyInit_opcodes(void)
{
    return PyModule_Create(&module);
}
